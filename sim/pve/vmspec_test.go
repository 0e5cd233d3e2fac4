// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// TestVMSpec converts configurations to machines.
func TestVMSpec(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		conf map[string]string
		qemu pve.QEMU
		want vm.Spec
	}{
		{
			name: "the defaults of Proxmox VE", conf: map[string]string{},
			want: vm.Spec{Name: "VM 1", MemoryMiB: 512, Sockets: 1, Cores: 1, SCSI: "lsi"},
		},
		{
			name: "a runner",
			conf: map[string]string{
				"name": "runner", "memory": "2048", "cores": "2", "sockets": "2", "scsihw": "virtio-scsi-single",
				"smbios1": "uuid=99ff3b79-25b9-4c17-ac4e-74166349ae07,serial=x", "agent": "enabled=1,fstrim_cloned_disks=1",
				"machine": "pc-q35-9.0", "reboot": "0", "boot": "order=scsi0;net1", "serial0": "socket", "onboot": "1",
				"scsi0": "local-lvm:vm-1-disk-0,size=20G", "ide2": "local:iso/x.iso,media=cdrom", "sata1": "none,media=cdrom",
				"efidisk0": "local-lvm:vm-1-disk-1,size=4M", "unused0": "local-lvm:vm-1-disk-2",
				"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=7", "net1": "model=e1000,macaddr=BC:24:11:00:00:02,link_down=1",
			},
			qemu: pve.QEMU{Kernel: "k", Initrd: "i", Append: "quiet", Accel: "kvm"},
			want: vm.Spec{
				Name: "runner", UUID: "99ff3b79-25b9-4c17-ac4e-74166349ae07", Accel: vm.KVM, Q35: true, MemoryMiB: 2048,
				Sockets: 2, Cores: 2, SCSI: "virtio-scsi-single", Kernel: "k", Initrd: "i", Append: "quiet", Agent: true, NoReboot: true,
				Drives: []vm.Drive{{Slot: "ide2", CDROM: true}, {Slot: "sata1", CDROM: true}, {Slot: "scsi0", BootIndex: 1}},
				NICs: []vm.NIC{
					{Model: "virtio", MAC: "BC:24:11:00:00:01"}, {Model: "e1000", MAC: "BC:24:11:00:00:02", Down: true, BootIndex: 2},
				},
			},
		},
		{
			name: "no boot order: disks, then CD drives, then cards",
			conf: map[string]string{
				"virtio0": "local-lvm:vm-1-disk-0", "ide0": "none,media=cdrom", "net0": "virtio=BC:24:11:00:00:01", "scsihw": "pvscsi",
			},
			want: vm.Spec{
				Name: "VM 1", MemoryMiB: 512, Sockets: 1, Cores: 1, SCSI: "pvscsi",
				Drives: []vm.Drive{{Slot: "ide0", CDROM: true, BootIndex: 2}, {Slot: "virtio0", BootIndex: 1}},
				NICs:   []vm.NIC{{Model: "virtio", MAC: "BC:24:11:00:00:01", BootIndex: 3}},
			},
		},
	} {
		got, err := pve.VMSpec(tc.conf, tc.qemu)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if diff := cmp.Diff(&tc.want, got); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
	for k, v := range map[string]string{"bios": "ovmf", "tpmstate0": "local-lvm:vm-1-disk-1,size=4M,version=v2.0"} {
		if _, err := pve.VMSpec(map[string]string{k: v}, pve.QEMU{}); err == nil {
			t.Errorf("%s, which is not there, is accepted", k)
		}
	}
}
