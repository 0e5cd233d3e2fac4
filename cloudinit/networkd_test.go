// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/test/exe"
)

// Settings that a network-config cannot express are written to a drop-in file for the file that netplan
// generates. Then networkctl reconfigures the network's devices.
func TestDHCPOptionsForNetworkd(t *testing.T) {
	t.Parallel()

	lease := &metav1.Duration{Duration: 90 * time.Minute}

	for name, tc := range map[string]struct {
		dhcp         v1alpha1.DHCP
		device       string
		reconfigured string
		want         string
	}{
		"the host's name": {
			dhcp: v1alpha1.DHCP{ClientIdentifier: "hostname"}, reconfigured: "eth0",
			want: "[DHCPv4]\nClientIdentifier=duid\nIAID=1\nDUIDType=uuid\nDUIDRawData=10:8d:3d:1c:a5:94:c9:df:85:4e:51:d7:bb:b4:3c:a7\n",
		},
		"a static lease": {
			dhcp: v1alpha1.DHCP{RequestStaticLease: true}, reconfigured: "ens18", device: "ens18",
			want: "[DHCPv4]\nClientIdentifier=duid\nIAID=1\nDUIDType=uuid\nDUIDRawData=10:8d:3d:1c:a5:94:c9:df:85:4e:51:d7:bb:b4:3c:a7\n",
		},
		"a text, and a lease": {
			dhcp: v1alpha1.DHCP{ClientIdentifier: "ci", LeaseTime: lease}, reconfigured: "ens18", device: "ens1*",
			want: "[DHCPv4]\nClientIdentifier=duid\nIAID=1\nDUIDType=vendor\nDUIDRawData=00:00:7e:d9:63:69\nSendOption=51:uint32:5400\n",
		},
		"a lease, and the MAC address": {
			dhcp: v1alpha1.DHCP{ClientIdentifier: "mac", LeaseTime: lease}, reconfigured: "eth0",
			want: "[DHCPv4]\nSendOption=51:uint32:5400\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			in.Network = &v1alpha1.MachineNetwork{Interface: tc.device, DHCP: &tc.dhcp}
			out, _ := mustRender(t, in)

			root := t.TempDir()
			calls := runBootCommands(t, root, out.UserData, tc.reconfigured)

			files, err := filepath.Glob(filepath.Join(root, "etc", "systemd", "network", "*.d", "*.conf"))
			if err != nil || len(files) != 1 {
				t.Fatalf("files: %v, %v", files, err)
			}

			if got, err := os.ReadFile(files[0]); err != nil || string(got) != tc.want {
				t.Errorf("%v, the file is\n%s\nwant\n%s", err, got, tc.want)
			}

			if want := "reload\nreconfigure " + tc.reconfigured + "\n"; calls != want {
				t.Errorf("networkctl got the arguments %q, want %q", calls, want)
			}

			of := strings.TrimSuffix(filepath.Base(filepath.Dir(files[0])), ".d")
			if made := exe.RunNetplan(t, out.NetworkConfig); made[of] == "" {
				t.Errorf("the drop-in is for %s, and netplan generates %v", of, made)
			}
		})
	}
}

// Without DHCP, and if a network-config can express everything, no command runs.
func TestNoFileForNetworkd(t *testing.T) {
	t.Parallel()

	no := false

	for name, network := range map[string]v1alpha1.MachineNetwork{
		"the MAC address": {DHCP: &v1alpha1.DHCP{ClientIdentifier: "mac"}},
		"no DHCP":         {DHCP: &v1alpha1.DHCP{Enabled: &no, ClientIdentifier: "ci"}},
		"another mode": {
			Mode: v1alpha1.NetworkModeStatic, DHCP: &v1alpha1.DHCP{ClientIdentifier: "ci"},
			Static: &v1alpha1.StaticNetwork{IPAddress: "10.0.0.5", Netmask: "24"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			in.Network = &network

			if out, _ := mustRender(t, in); strings.Contains(string(out.UserData), "networkctl") {
				t.Errorf("something is run:\n%s", out.UserData)
			}
		})
	}
}

// A name that contains shell syntax is rejected.
func TestNoShellInInterfaces(t *testing.T) {
	t.Parallel()

	for _, device := range []string{"$(id)", "a;id", "a'b", "`id`"} {
		in := newSampleInput()
		in.Network = &v1alpha1.MachineNetwork{Interface: device, DHCP: &v1alpha1.DHCP{ClientIdentifier: "ci"}}

		if _, err := cloudinit.Render(in); err == nil || !strings.Contains(err.Error(), "network.interface") {
			t.Errorf("%s: %v", device, err)
		}
	}
}

// runBootCommands runs the user data's boot commands below root, on a machine with one network device. It
// returns the arguments of networkctl.
func runBootCommands(t *testing.T, root string, userData []byte, device string) string {
	t.Helper()

	var config struct {
		BootCmd [][]string `yaml:"bootcmd"`
	}
	if err := yaml.Unmarshal(userData, &config); err != nil || len(config.BootCmd) == 0 {
		t.Fatalf("no commands: %v\n%s", err, userData)
	}

	bin, log := t.TempDir(), filepath.Join(root, "log")

	for dir, mode := range map[string]os.FileMode{"sys/class/net/" + device: 0o700, "sys/class/net/lo": 0o700} {
		if err := os.MkdirAll(filepath.Join(root, dir), mode); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.WriteFile(filepath.Join(bin, "networkctl"), []byte("#!/bin/sh\necho \"$@\" >>'"+log+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}

	elsewhere := strings.NewReplacer("/etc/", root+"/etc/", "/sys/", root+"/sys/", "/usr/lib/", root+"/usr/lib/")

	for _, command := range config.BootCmd {
		words := make([]string, 0, len(command))
		for _, word := range command {
			words = append(words, elsewhere.Replace(word))
		}

		cmd := exec.Command(words[0], words[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))

		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", words, err, output)
		}
	}

	output, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}

	return string(output)
}
