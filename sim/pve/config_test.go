// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

const confPath = "/nodes/pve1/qemu/1000/config"

// someKey is a public key of type ssh-ed25519.
const someKey = "AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

// TestStoredOptions checks how options are stored and returned.
func TestStoredOptions(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	for _, tc := range []struct{ reason, option, value, want string }{
		{"tags are lower-cased, sorted and joined with ;", "tags", "Zeta, alpha;beta alpha", "alpha;beta;zeta"},
		{"tags may hold - . + and _", "tags", "hf-op.1,_a,b+c", "_a;b+c;hf-op.1"},
		{"blanks at the end of a description are removed", "description", "a\nb \n", "a\nb"},
		{"booleans are numbers", "onboot", "1", "1"},
		{"passwords are masked", "cipassword", "secret", "**********"},
		{"numbers stay", "cores", "8", "8"},
		{"memory is text", "memory", "8192", "8192"},
		{"network addresses stay", "net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0", "virtio=BC:24:11:00:00:01,bridge=vmbr0"},
		{"ip configuration", "ipconfig0", "ip=10.0.0.5/24,gw=10.0.0.1", "ip=10.0.0.5/24,gw=10.0.0.1"},
		{"keys stay encoded", "sshkeys", "ssh-ed25519%20" + someKey + "%20me", "ssh-ed25519%20" + someKey + "%20me"},
		{"agent with settings", "agent", "enabled=1,fstrim_cloned_disks=1", "enabled=1,fstrim_cloned_disks=1"},
		{"a new disk", "scsi1", "local-lvm:3,ssd=1", "local-lvm:vm-1000-disk-1,size=3G,ssd=1"},
		{"a TPM state", "tpmstate0", "local-lvm:1,version=v2.0", "local-lvm:vm-1000-disk-2,size=4M,version=v2.0"},
		{"boot order", "boot", "order=scsi0;ide2", "order=scsi0;ide2"},
		{"an empty drive", "ide2", "none,media=cdrom", "none,media=cdrom"},
	} {
		a.mustDo("PUT", confPath, formData{tc.option: tc.value})
		got := a.getConfig("1000")[tc.option]
		if s := fmt.Sprint(got); s != tc.want {
			t.Errorf("%s: %q, want %q", tc.reason, s, tc.want)
		}
	}
	mac := func() any {
		a.mustDo("PUT", confPath, formData{"net1": "virtio,bridge=vmbr0"})
		return a.getConfig("1000")["net1"]
	}
	if one, two := mac(), mac(); !strings.HasPrefix(fmt.Sprint(one), "virtio=BC:24:11:") || one == two {
		t.Errorf("addresses %v %v", one, two)
	}
	if got := a.s.Snapshot(); strings.Contains(fmt.Sprint(got), "secret") {
		t.Error("a snapshot shows a password")
	}
}

// TestRefusedOptions checks values that the real schema rejects.
func TestRefusedOptions(t *testing.T) {
	t.Parallel()
	a := startCluster(t, func(m *pve.Model) { m.RegisteredTags = []string{"golden"} })
	a.clone("1000", nil)
	long := strings.Repeat("x", 8193)
	for _, tc := range []struct {
		reason string
		params formData
		status int
		want   string // part of the reason or of the field's error
	}{
		{"key=value tags", formData{"tags": "hyperfleet.io/managed-by=x"}, 400, "invalid characters in tag"},
		{"tag with a colon", formData{"tags": "a:b"}, 400, "invalid characters in tag"},
		{"registered tag", formData{"tags": "golden"}, 403, "Sys.Modify for modifying tag 'golden'"},
		{"name with an underscore", formData{"name": "a_b"}, 400, "valid DNS name"},
		{"no cores", formData{"cores": "0"}, 400, "minimum value of 1"},
		{"cores as text", formData{"cores": "two"}, 400, "type check ('integer') failed - got 'two'"},
		{"long description", formData{"description": long}, 400, "value may only be 8192 characters long"},
		{"unknown option", formData{"flavour": "x"}, 400, "property is not defined in schema"},
		{"unknown bus", formData{"scsi31": "none"}, 400, "property is not defined in schema"},
		{"unknown drive setting", formData{"scsi0": "local-lvm:vm-1000-disk-0,colour=red"}, 400, "colour: property is not defined"},
		{"drive without volume", formData{"ide2": "media=cdrom"}, 400, "file: property is missing"},
		{"ISO that is not there", formData{"ide2": "local:iso/none.iso,media=cdrom"}, 500, "volume 'local:iso/none.iso' does not exist"},
		{"ISO on an unknown storage", formData{"ide2": "nope:iso/none.iso,media=cdrom"}, 500, "storage 'nope' does not exist"},
		{"a second cloud-init drive", formData{"ide3": "local-lvm:cloudinit"}, 500, "cloud-init drive is already attached at 'ide2'"},
		{"keys with a plus", formData{"sshkeys": "ssh-ed25519+AAAA"}, 400, "invalid urlencoded string"},
		{"invalid keys", formData{"sshkeys": "hello"}, 500, "SSH public key validation error"},
		{"address without prefix", formData{"ipconfig0": "ip=10.0.0.5"}, 400,
			"ipconfig0.ip: invalid format - value does not look like a valid ipv4 network configuration\n\n"},
		{"bad gateway", formData{"ipconfig0": "gw6=10"}, 400, "ipconfig0.gw6: invalid format - value does not look like a valid ipv6 address"},
		{"unknown processor", formData{"cpu": "nonsense"}, 400, "Built-in cputype 'nonsense' is not defined (missing 'custom-' prefix?)\n"},
		{"little memory", formData{"memory": "8"}, 400, "format error\nmemory.current: value must have a minimum value of 16\n"},
		{"an invalid drive", formData{"ide3": "nonsense"}, 400, "ide3.file: invalid format - unable to parse volume ID 'nonsense'\n\n"},
		{"boot from an invalid device", formData{"boot": "order=zz"}, 400, "boot.order: invalid format - invalid boot device 'zz'"},
		{"a hook script that is not there", formData{"hookscript": "local:snippets/x"}, 400, "script 'local:snippets/x' does not exist\n"},
		{"a card of the host", formData{"hostpci0": "00:00.0"}, 500, "only root can set 'hostpci0' config for non-mapped devices"},
		{"a stick of the host", formData{"usb0": "host=1-1"}, 500, "only root can set 'usb0' config for real devices"},
		{"cicustom that is no volume", formData{"cicustom": "user=file"}, 400, "unable to parse volume ID"},
		{"cicustom of an unknown kind", formData{"cicustom": "boot=local:snippets/x"}, 400, "boot: property is not defined"},
		{"network without model", formData{"net0": "bridge=vmbr0"}, 400, "model: property is missing"},
		{"unknown controller", formData{"scsihw": "x"}, 400, "does not have a value in the enumeration"},
		{"boot from a missing device", formData{"boot": "order=scsi9"}, 500, "device 'scsi9' does not exist"},
		{"balloon above memory", formData{"balloon": "99999"}, 500, "balloon value too large"},
		{"arguments", formData{"args": "-cpu host"}, 500, "only root can set 'args' config"},
		{"lock", formData{"lock": "backup"}, 500, "only root can set 'lock' config"},
		{"a real serial device", formData{"serial1": "/dev/ttyS0"}, 500, "only root can modify 'serial1' config for real devices"},
		{"stale digest", formData{"cores": "1", "digest": strings.Repeat("0", 40)}, 500, "checksum mismatch (file change by other user?)"},
		{"set and deleted", formData{"cores": "1", "delete": "cores"}, 400, "at the same time"},
		{"deletion of an unknown option", formData{"delete": "flavour"}, 400, "unknown option 'flavour'"},
		{"no options", formData{}, 500, "no options specified"},
	} {
		got := a.do("PUT", confPath, tc.params)
		if text := got.reason + fmt.Sprint(got.body["errors"]); got.status != tc.status || !strings.Contains(text, tc.want) {
			t.Errorf("%s: %d %s, want %d %s", tc.reason, got.status, text, tc.status, tc.want)
		}
	}
	a.asRoot().mustDo("PUT", confPath, formData{"args": "-cpu host", "tags": "golden"})
	if got := a.do("PUT", confPath, formData{"tags": "golden;mine"}); got.status != 200 {
		t.Errorf("a registered tag could not stay: %v", got.body)
	}
	const want = "Permission check failed (/, Sys.Modify for modifying tag 'golden')"
	for _, params := range []formData{{"tags": "mine"}, {"delete": "tags"}} {
		if got := a.do("PUT", confPath, params); got.reason != want {
			t.Errorf("a registered tag was removed: %d %s", got.status, got.reason)
		}
	}
}

// TestDigest checks the protection from concurrent changes.
func TestDigest(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	old := fmt.Sprint(a.getConfig("1000")["digest"])
	a.mustDo("PUT", confPath, formData{"cores": "3", "digest": old})
	if now := fmt.Sprint(a.getConfig("1000")["digest"]); now == old || len(now) != 40 {
		t.Errorf("digest %q after %q", now, old)
	}
	if got := a.do("PUT", confPath, formData{"cores": "4", "digest": old}); got.status != 500 {
		t.Errorf("old digest accepted: %d", got.status)
	}
}

// TestPending checks which changes apply to a running VM at once and which wait for the next start.
func TestPending(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	iso := buildISO(t, "cidata", map[string]string{"user-data": "x"})
	if _, err := a.s.AddISO("pve1", "local", "a.iso", iso); err != nil {
		t.Fatal(err)
	}
	a.mustDo("PUT", confPath, formData{"ide2": "local:iso/a.iso,media=cdrom"})
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/start", nil)
	a.mustDo("PUT", confPath, formData{"cores": "7", "tags": "x", "ide2": "none,media=cdrom", "ide3": "none,media=cdrom"})
	a.mustDo("PUT", confPath, formData{"delete": "serial0"})
	vm, _ := a.s.Snapshot().VM(1000)
	if vm.Tags != "x" || vm.Config["ide2"] != "none,media=cdrom" {
		t.Errorf("live changes: %v", vm.Config)
	}
	if vm.Config["cores"] != "2" || vm.Pending["cores"] != "7" || vm.Pending["ide3"] == "" || vm.Config["serial0"] == "" {
		t.Errorf("pending changes: %v %v", vm.Config, vm.Pending)
	}
	if c := a.getConfig("1000"); c["cores"] != 7.0 || c["serial0"] != nil {
		t.Errorf("read with pending: %v", c)
	}
	current, _ := a.mustDo("GET", confPath, formData{"current": "1"}).(map[string]any)
	if current["cores"] != 2.0 || current["serial0"] != "socket" {
		t.Errorf("read as current: %v", current)
	}
	a.mustDo("PUT", confPath, formData{"revert": "ide3"})
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/stop", nil)
	vm, _ = a.s.Snapshot().VM(1000)
	if vm.Config["cores"] != "7" || vm.Config["ide3"] != "" || vm.Config["serial0"] != "" || len(vm.Pending) != 0 {
		t.Errorf("after stop: %v %v", vm.Config, vm.Pending)
	}
}

// TestVolumesOfDrives checks that the volume of a removed disk remains as unused, that a cloud-init
// drive is freed, and that an ISO is not deleted.
func TestVolumesOfDrives(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	volumes := func() string {
		var out []string
		for _, v := range a.s.Snapshot().Volumes {
			if v.VMID == 1000 || v.Content == "iso" {
				out = append(out, v.VolID)
			}
		}
		return strings.Join(out, " ")
	}
	if _, err := a.s.AddISO("pve1", "local", "a.iso", []byte("x")); err != nil {
		t.Fatal(err)
	}
	a.mustDo("PUT", confPath, formData{"ide2": "local:iso/a.iso,media=cdrom"})
	if got := volumes(); got != "local-lvm:vm-1000-disk-0 local:iso/a.iso" {
		t.Errorf("cloud-init drive replaced: %s", got)
	}
	a.mustDo("PUT", confPath, formData{"delete": "scsi0,ide2"})
	c := a.getConfig("1000")
	if c["unused0"] != "local-lvm:vm-1000-disk-0" || c["scsi0"] != nil || c["boot"] != "order=" {
		t.Errorf("disk detached: %v", c)
	}
	if got := a.do("DELETE", "/nodes/pve1/storage/local-lvm/content/vm-1000-disk-0", nil); got.status != 403 {
		t.Errorf("image deleted by a token without Datastore.Allocate: %d", got.status)
	}
	a.mustDo("PUT", confPath, formData{"delete": "unused0"})
	if got := volumes(); got != "local:iso/a.iso" {
		t.Errorf("unused disk removed: %s", got)
	}
	a.mustDo("PUT", confPath, formData{"protection": "1"})
	if got := a.do("DELETE", "/nodes/pve1/qemu/1000", nil); got.reason != "can't remove VM 1000 - protection mode enabled" {
		t.Errorf("protected: %d %s", got.status, got.reason)
	}
	a.mustDo("PUT", confPath, formData{"delete": "protection"})
	a.mustRunTask("DELETE", "/nodes/pve1/qemu/1000", nil)
	if got := volumes(); got != "local:iso/a.iso" {
		t.Errorf("destroyed: %s", got)
	}
}

// TestResize checks that disks can only grow.
func TestResize(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	for _, tc := range []struct{ disk, size, exit string }{
		{"scsi0", "+5G", "OK"},
		{"scsi0", "50G", "OK"},
		{"scsi0", "10G", "shrinking disks is not supported"},
		{"ide2", "50G", "you can't resize a cdrom"},
		{"scsi3", "50G", "disk 'scsi3' does not exist"},
	} {
		if exit := a.runTask("PUT", "/nodes/pve1/qemu/1000/resize", formData{"disk": tc.disk, "size": tc.size}); exit != tc.exit {
			t.Errorf("%s %s: %q, want %q", tc.disk, tc.size, exit, tc.exit)
		}
	}
	if v := a.getConfig("1000")["scsi0"]; v != "local-lvm:vm-1000-disk-0,size=50G" {
		t.Errorf("scsi0 %v", v)
	}
	if got := a.do("PUT", "/nodes/pve1/qemu/1000/resize", formData{"disk": "scsi0", "size": "big"}); got.status != 400 {
		t.Errorf("size as text: %d", got.status)
	}
}

// TestCICustomLimits checks the limits at the start, when the drive is generated.
func TestCICustomLimits(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	a := startCluster(t, func(m *pve.Model) {
		m.Storages[0].Snippets = map[string]string{
			"big": strings.Repeat("x", mib+1), "full": strings.Repeat("x", mib), "ok": "x",
		}
	})
	a.clone("1000", nil)
	for _, tc := range []struct{ value, exit string }{
		{"user=local:snippets/ok", "OK"},
		{"user=local:snippets/big", "too long - aborting"},
		{"user=local:snippets/full,meta=local:snippets/full,network=local:snippets/full", "OK"},
		{"user=local:snippets/full,meta=local:snippets/full,network=local:snippets/full,vendor=local:snippets/ok",
			"too long - aborting"},
		{"user=local:snippets/none", "No such file or directory"},
		{"user=local:iso/x.iso", "is not in the snippets directory"},
	} {
		a.mustDo("PUT", confPath, formData{"cicustom": tc.value})
		exit := a.runTask("POST", "/nodes/pve1/qemu/1000/status/start", nil)
		if !strings.Contains(exit, tc.exit) {
			t.Errorf("%s: %q", tc.value, exit)
		}
		a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/stop", nil)
	}
}

// TestGeneratedCloudInit checks the drive that is generated from the ci options.
func TestGeneratedCloudInit(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	a.mustDo("PUT", confPath, formData{
		"ciuser": "runner", "cipassword": "pw", "sshkeys": "ssh-ed25519%20" + someKey + "%20me", "ciupgrade": "0",
		"ipconfig0": "ip=10.0.0.5/24,gw=10.0.0.1", "nameserver": "10.0.0.1", "searchdomain": "example.test",
	})
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/start", nil)
	label, files, err := pve.ReadISO(a.s.VolumeData("pve1", "local-lvm:vm-1000-cloudinit"))
	if err != nil || label != "cidata" {
		t.Fatalf("label %q: %v", label, err)
	}
	for name, parts := range map[string][]string{
		"user-data": {"#cloud-config\n", "hostname: vm-1000", "fqdn: vm-1000.example.test", "user: runner",
			"password: $5$", "  - ssh-ed25519 " + someKey, "expire: False\nusers:\n  - default\n"},
		"network-config": {"version: 1", "address: '10.0.0.5'\n        netmask: '255.255.255.0'", "gateway: '10.0.0.1'", "- 'example.test'"},
		"meta-data":      {"instance-id: "},
	} {
		for _, want := range parts {
			if !strings.Contains(string(files[name]), want) {
				t.Errorf("%s lacks %q:\n%s", name, want, files[name])
			}
		}
	}
}

// TestNewDriveBoots checks that a new CD drive becomes the last one in the boot order.
func TestNewDriveBoots(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.clone("1000", nil)
	a.mustDo("PUT", confPath, formData{"ide3": "none,media=cdrom"})
	if got := a.getConfig("1000")["boot"]; got != "order=scsi0;ide3" {
		t.Errorf("boot %v", got)
	}
	a.mustDo("PUT", confPath, formData{"ide3": "none,media=cdrom", "delete": "ide2"})
	if got := a.getConfig("1000")["boot"]; got != "order=scsi0;ide3" {
		t.Errorf("boot after another change %v", got)
	}
}
