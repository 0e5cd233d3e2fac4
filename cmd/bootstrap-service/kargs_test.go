// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/elf"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/networking/netdata"
)

// TestKargs: what a machine is given as network data comes to the same arguments of
// dracut, from a config drive and from NoCloud's files, by a program that needs nothing
// else in an early boot's file system.
func TestKargs(t *testing.T) {
	t.Parallel()

	program := build(t, ".")

	binary, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}

	if libraries, err := binary.ImportedLibraries(); err != nil || len(libraries) > 0 || binary.Section(".interp") != nil {
		t.Errorf("is not linked statically: %v, %v", libraries, err)
	}

	gateway4, gateway6 := netip.MustParseAddr("192.168.1.1"), netip.MustParseAddr("2001:db8::1")
	network := netdata.Network{
		Links: []netdata.Link{{
			ID: "eth0", Name: "eth0", MAC: "52:54:00:12:34:56",
			Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.10/24"), netip.MustParsePrefix("2001:db8::10/64")},
			Routes:    []netdata.Route{netdata.Default(gateway4), netdata.Default(gateway6)},
		}},
		DNS: netdata.DNS{Servers: []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("2001:4860:4860::8888")}},
	}

	const want = "ip=192.168.1.10:::255.255.255.0::eth0:static ip=[2001:db8::10]:::64::eth0:static " +
		"rd.route=0.0.0.0/0:192.168.1.1 rd.route=[::/0]:[2001:db8::1] nameserver=8.8.8.8 nameserver=[2001:4860:4860::8888]\n"

	for file, write := range map[string]func() ([]byte, error){
		"openstack/latest/network_data.json": network.OpenStack, "network-config": network.V2,
	} {
		data, err := write()
		path := filepath.Join(t.TempDir(), file)

		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}

		dir := path[:len(path)-len(file)]

		out, err := exec.Command(program, "kargs", dir).Output()
		if err != nil || string(out) != want {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}

	out, err := exec.Command(program, "kargs", "--config-drive", "/none").CombinedOutput()
	if err == nil || string(out) != "bootstrap-service kargs: read config drive: /none: is not a directory\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
