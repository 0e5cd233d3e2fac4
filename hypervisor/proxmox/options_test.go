// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

func TestEditNet(t *testing.T) {
	const clone = "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=7"

	cases := []struct {
		name, net, bridge string
		vlan              int
		want              string
	}{
		{"nothing wanted keeps all", clone, "", 0, clone},
		{"the MTU stays", clone + ",mtu=1400", "vmbr1", 9, "virtio=BC:24:11:00:00:01,bridge=vmbr1,firewall=1,tag=9,mtu=1400"},
		{"a bridge drops the template's VLAN", clone, "vmbr1", 0, "virtio=BC:24:11:00:00:01,bridge=vmbr1,firewall=1"},
		{"a VLAN on the template's bridge", clone, "", 9, "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=9"},
		{"both", clone, "vmbr1", 9, "virtio=BC:24:11:00:00:01,bridge=vmbr1,firewall=1,tag=9"},
		{"no device and none wanted", "", "", 0, ""},
		{"no device, a bridge makes one", "", "vmbr1", 9, "virtio,bridge=vmbr1,tag=9"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, editNet(c.net, c.bridge, c.vlan)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestMACOf(t *testing.T) {
	cases := map[string]string{
		"virtio=bc:24:11:00:00:01,bridge=vmbr0":          "BC:24:11:00:00:01",
		"model=e1000,macaddr=BC:24:11:00:00:02,bridge=b": "BC:24:11:00:00:02",
		"bridge=vmbr0,e1000-82545em=BC:24:11:00:00:03":   "BC:24:11:00:00:03",
		"virtio,bridge=vmbr0":                            "",
		"bridge=virtio":                                  "",
		"":                                               "",
		"virtio=AA:BB:CC:DD:EE:FF,virtio=00:00:00:00:00:0": "AA:BB:CC:DD:EE:FF",
	}
	for net, want := range cases {
		if got := parseMAC(net); got != want {
			t.Errorf("macOf(%q) = %q, want %q", net, got, want)
		}
	}
}

func TestFirstDisk(t *testing.T) {
	cases := []struct {
		name   string
		config vmConfig
		want   disk
		ok     bool
	}{
		{"boot order counts", vmConfig{
			"boot": "order=virtio1;scsi0", "scsi0": "a:vm-1-disk-0,size=10G", "virtio1": "b:vm-1-disk-1,size=20G",
		}, disk{"virtio1", "b", 20 << 30}, true},
		{"without one the lowest SCSI disk", vmConfig{
			"ide0": "a:x,size=1G", "scsi10": "a:y,size=2G", "scsi2": "c:z,size=3G",
		}, disk{"scsi2", "c", 3 << 30}, true},
		{"CD-ROMs are none", vmConfig{
			"boot": "order=ide2;net0", "ide2": "local:iso/x.iso,media=cdrom", "sata0": "a:vm-1-cloudinit",
		}, disk{}, false},
		{"boot names what is not there", vmConfig{"boot": "order=scsi0", "scsi1": "a:q,size=512M"},
			disk{"scsi1", "a", 512 << 20}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, ok := findBootDisk(c.config)
			if ok != c.ok || got != c.want {
				t.Errorf("got %+v %t, want %+v %t", got, ok, c.want, c.ok)
			}
		})
	}
}

func TestSlots(t *testing.T) {
	cases := []struct {
		name            string
		config          vmConfig
		cloudInit, seed string
	}{
		{"cloud-init drive on LVM", vmConfig{"ide2": "local-lvm:vm-9000-cloudinit,media=cdrom"}, "ide2", "ide2"},
		{"cloud-init drive as file", vmConfig{"scsi1": "local:9000/vm-9000-cloudinit.qcow2,media=cdrom"}, "scsi1", "scsi1"},
		{"nothing", vmConfig{"scsi0": "a:b"}, "", "ide2"},
		{"an empty drive", vmConfig{"ide2": "none,media=cdrom"}, "", "ide2"},
		{"ide2 in use", vmConfig{"ide2": "local:iso/x.iso,media=cdrom"}, "", "ide0"},
		{"ide2 and ide0 in use", vmConfig{"ide2": "a:b", "ide0": "a:c"}, "", "sata5"},
		{"all in use", vmConfig{"ide2": "a:b", "ide0": "a:c", "sata5": "a:d"}, "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := findCloudInitSlot(c.config); got != c.cloudInit {
				t.Errorf("cloud-init slot %q, want %q", got, c.cloudInit)
			}

			if got := findISOSlot(c.config); got != c.seed {
				t.Errorf("cloud-init ISOs slot %q, want %q", got, c.seed)
			}
		})
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"512": 512, "4M": 4 << 20, "20G": 20 << 30, "1T": 1 << 40, "1.5G": 3 << 29, "8K": 8 << 10, "0": 0,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}

	for _, text := range []string{"", "G", "-1G", "x", "1P", "NaN", "Inf", "1e300T"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("parseSize(%q) = %d", text, got)
		}
	}

	for bytes, want := range map[int64]string{20 << 30: "20G", 1: "1M", 1<<30 + 1: "1025M", 5 << 20: "5M"} {
		if got := formatSize(bytes); got != want {
			t.Errorf("formatSize(%d) = %q, want %q", bytes, got, want)
		}
	}

	if got := formatMemory(2<<30 + 1); got != "2049" {
		t.Errorf("memory is rounded to %s", got)
	}
}

func TestIPConfig(t *testing.T) {
	cases := map[string]hypervisor.NetworkOptions{
		"ip=dhcp":                        {},
		"ip=10.0.0.5/24,gw=10.0.0.1":     {Addresses: []string{"10.0.0.5/24"}, Gateways: []string{"10.0.0.1"}},
		"ip=10.0.0.5/24":                 {Addresses: []string{"10.0.0.5/24"}},
		"ip6=2001:db8::5/64,gw6=fe80::1": {Addresses: []string{"2001:db8::5/64"}, Gateways: []string{"fe80::1"}},
		"ip=10.0.0.5/24,ip6=2001:db8::5/64,gw=10.0.0.1,gw6=fe80::1": {
			Addresses: []string{"10.0.0.5/24", "2001:db8::5/64"}, Gateways: []string{"10.0.0.1", "fe80::1"},
		},
		"ip6=2001:db8::6/64,gw6=fe80::1": { // a gateway without an address of its family is ignored
			Addresses: []string{"2001:db8::6/64"}, Gateways: []string{"10.0.0.1", "fe80::1"},
		},
	}
	for want, options := range cases {
		if got := formatIPConfig(options); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAgentEnabled(t *testing.T) {
	for option, want := range map[string]bool{
		"1": true, "enabled=1": true, "1,fstrim_cloned_disks=1": true, "fstrim_cloned_disks=1,enabled=1": true,
		"": false, "0": false, "enabled=0": false, "0,type=virtio": false,
	} {
		if got := isAgentEnabled(option); got != want {
			t.Errorf("agentEnabled(%q) = %t", option, got)
		}
	}
}

func TestParseUPID(t *testing.T) {
	got, err := ParseUPID("UPID:pve1:0000ABCD:00112233:65A1B2C3:qmclone:9000:hyperfleet@pve!op:")
	if err != nil {
		t.Fatal(err)
	}

	if got.Node != "pve1" || got.Type != "qmclone" || got.ID != "9000" || got.User != "hyperfleet@pve!op" ||
		got.Start.Unix() != 0x65A1B2C3 || got.Ticks != 0x112233 {
		t.Errorf("got %+v", got)
	}

	for name, text := range map[string]string{
		"empty":           "",
		"no user part":    "UPID:pve1:0000ABCD:00112233:65A1B2C3:qmclone:9000:",
		"not hexadecimal": "UPID:pve1:XYZ:00112233:65A1B2C3:qmclone:9000:u@pve:",
		"no node":         "UPID::0000ABCD:00112233:65A1B2C3:qmclone:9000:u@pve:",
		"a path":          "UPID:a/b:0000ABCD:00112233:65A1B2C3:qmclone:9000:u@pve:",
		"no type":         "UPID:pve1:0000ABCD:00112233:65A1B2C3::9000:u@pve:",
		"something else":  "TASK:pve1:0000ABCD:00112233:65A1B2C3:qmclone:9000:u@pve:",
	} {
		if got, err := ParseUPID(text); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTaskSucceeded(t *testing.T) {
	for exit, want := range map[string]bool{"OK": true, "WARNINGS: 1": true, exitUnknown: false, "clone failed": false} {
		if isTaskSuccess(exit) != want {
			t.Errorf("exit status %q counts as success: %t", exit, !want)
		}
	}
}

func FuzzParseUPID(f *testing.F) {
	f.Add("UPID:pve1:0000ABCD:00112233:65A1B2C3:qmclone:9000:hyperfleet@pve!op:")
	f.Add("UPID:::::::::")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseUPID(text)
		if err == nil && (got.Node == "" || got.Type == "" || strings.ContainsAny(got.Node, "/?#%:")) {
			t.Errorf("%q gave %+v", text, got)
		}
	})
}

func FuzzEditNet(f *testing.F) {
	f.Add("virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=7", "vmbr1", uint16(9))
	f.Add(",,=,bridge=", "b", uint16(0))
	f.Fuzz(func(t *testing.T, net, bridge string, vlan uint16) {
		if strings.ContainsAny(bridge, ",=") {
			return
		}

		got := editNet(net, bridge, int(vlan))

		if bridge != "" && parseProperty(got, "bridge") != bridge {
			t.Errorf("%q has not bridge %q", got, bridge)
		}

		if parseMAC(got) != parseMAC(net) && net != "" {
			t.Errorf("the MAC changed: %q to %q", net, got)
		}

		if again := editNet(got, bridge, int(vlan)); again != got {
			t.Errorf("editing twice: %q, then %q", got, again)
		}
	})
}

func FuzzSetProperty(f *testing.F) {
	f.Add("local:vm-1-disk-0,size=1G,ssd=1", "size", "2G")
	f.Fuzz(func(t *testing.T, option, key, value string) {
		if key == "" || strings.ContainsAny(key+value, ",=") {
			return
		}

		got := setProperty(option, key, value)
		if parseProperty(got, key) != value {
			t.Errorf("setProperty(%q, %q, %q) = %q", option, key, value, got)
		}
	})
}
