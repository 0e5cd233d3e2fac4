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
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
)

// TestKargs: what a machine is given as network data comes to the same arguments of
// dracut, from a config drive and from NoCloud's files, by a program that needs nothing
// else in an early boot's file system.
func TestKargs(t *testing.T) {
	t.Parallel()

	binary, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}

	if libraries, err := binary.ImportedLibraries(); err != nil || len(libraries) > 0 || binary.Section(".interp") != nil {
		t.Errorf("is not linked statically: %v, %v", libraries, err)
	}

	const (
		v4 = "ip=192.168.1.10:::255.255.255.0::eth0:static"
		v6 = "ip=[2001:db8::10]:::64::eth0:static"
		// route4 and route6 are the gateways, which dracut's ip= has a place for that is not used.
		route4, route6 = "rd.route=0.0.0.0/0:192.168.1.1", "rd.route=[::/0]:[2001:db8::1]"
		name4, name6   = "nameserver=8.8.8.8", "nameserver=[2001:4860:4860::8888]"
	)

	for name, row := range map[string]struct {
		link netdata.Link
		dns  []string
		want string
	}{
		"v4": {link: static("192.168.1.10/24", "192.168.1.1"), dns: []string{"8.8.8.8"}, want: v4 + " " + route4 + " " + name4},
		"v6": {
			link: static("2001:db8::10/64", "2001:db8::1"), dns: []string{"2001:4860:4860::8888"},
			want: v6 + " " + route6 + " " + name6,
		},
		"dual stack": {
			link: static("192.168.1.10/24", "192.168.1.1", "2001:db8::10/64", "2001:db8::1"),
			dns:  []string{"8.8.8.8", "2001:4860:4860::8888"},
			want: strings.Join([]string{v4, v6, route4, route6, name4, name6}, " "),
		},
		"no gateway":     {link: static("192.168.1.10/24", ""), want: v4},
		"DHCP":           {link: netdata.Link{DHCP4: true}, want: "ip=eth0:dhcp"},
		"DHCPv6":         {link: netdata.Link{DHCP6: true}, want: "ip=eth0:dhcp6"},
		"DHCP of both":   {link: netdata.Link{DHCP4: true, DHCP6: true}, want: "ip=eth0:dhcp,dhcp6"},
		"DHCP, own name": {link: netdata.Link{DHCP4: true}, dns: []string{"8.8.8.8"}, want: "ip=eth0:dhcp " + name4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			row.link.ID, row.link.Name, row.link.MAC = "eth0", "eth0", "52:54:00:12:34:56"
			network := netdata.Network{Links: []netdata.Link{row.link}}

			for _, server := range row.dns {
				network.DNS.Servers = append(network.DNS.Servers, netip.MustParseAddr(server))
			}

			for file, write := range map[string]func() ([]byte, error){
				"openstack/latest/network_data.json": network.OpenStack, "network-config": network.V2,
			} {
				data, err := write()
				if err != nil {
					t.Fatal(err)
				}

				if out, err := exec.Command(program, "kargs", drive(t, file, data)).Output(); err != nil || string(out) != row.want+"\n" {
					t.Errorf("%s: %v\n got %s\nwant %s", file, err, out, row.want)
				}
			}
		})
	}
}

// static is a link with addresses, each followed by its gateway or nothing.
func static(addresses ...string) netdata.Link {
	var link netdata.Link

	for i := 0; i < len(addresses); i += 2 {
		link.Addresses = append(link.Addresses, netip.MustParsePrefix(addresses[i]))

		if addresses[i+1] != "" {
			link.Routes = append(link.Routes, netdata.Default(netip.MustParseAddr(addresses[i+1])))
		}
	}

	return link
}

// drive is a folder with one file, as a config drive is mounted.
func drive(t *testing.T, file string, data []byte) string {
	t.Helper()

	dir := t.TempDir()
	path := filepath.Join(dir, file)

	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600)); err != nil {
		t.Fatal(err)
	}

	return dir
}

// TestKargsSaysWhatIsWrong: the words are those of the systemd unit that fails.
func TestKargsSaysWhatIsWrong(t *testing.T) {
	t.Parallel()

	broken := drive(t, "openstack/latest/network_data.json", []byte(`{"links": [`))

	for name, row := range map[string]struct {
		args []string
		want string
	}{
		"no folder": {
			[]string{"--config-drive", "/none"}, "bootstrap-service kargs: read config drive: /none: is not a directory\n",
		},
		"network data that is no JSON": {[]string{broken}, "network_data.json"},
	} {
		out, err := exec.Command(program, append([]string{"kargs"}, row.args...)...).CombinedOutput()

		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(string(out), row.want) || strings.Contains(string(out), "ip=") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}

	// A drive without network data is none of the machine's trouble: it boots without arguments.
	out, err := exec.Command(program, "kargs", t.TempDir()).Output()
	if err != nil || len(out) > 0 {
		t.Errorf("a drive with nothing on it: %v\n%s", err, out)
	}
}
