// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/sim/pve/vm"
)

// newVMSpec returns the machine that a configuration describes. Its drives have no files yet.
// Options that concern the node's other machines (bridges, VLANs, limits, balloons) have no effect.
func newVMSpec(m *machine, cfg QEMU) (*vm.Spec, error) {
	if m.conf["bios"] == "ovmf" {
		return nil, dief("bios 'ovmf' is not simulated by QEMU guests")
	}
	if m.conf[tpmSlot] != "" {
		return nil, dief("'%s' is not simulated by QEMU guests", tpmSlot)
	}
	s := &vm.Spec{
		Name: m.name(), UUID: parseSMBIOSUUID(m.conf["smbios1"]), Accel: vm.Accel(cfg.Accel),
		Q35:       strings.Contains(m.conf["machine"], "q35"),
		MemoryMiB: m.memBytes() >> 20, Sockets: max(1, atoi(m.conf["sockets"])), Cores: max(1, atoi(m.conf["cores"])),
		SCSI: cmp.Or(m.conf["scsihw"], "lsi"), Kernel: cfg.Kernel, Initrd: cfg.Initrd, Append: cfg.Append,
		Agent: isAgentEnabled(m.conf["agent"]), NoReboot: m.conf["reboot"] == "0",
	}
	order := findBootOrder(m.conf)
	for _, slot := range slices.Sorted(maps.Keys(m.conf)) {
		value := m.conf[slot]
		switch {
		case reNet.MatchString(slot):
			nic := parseNIC(value)
			nic.BootIndex = 1 + slices.Index(order, slot)
			s.NICs = append(s.NICs, nic)
		case !isDriveName(slot) || slot == "efidisk0":
		default:
			d, err := parseDrive(value)
			if err != nil {
				return nil, dief("unable to parse drive options for '%s'", slot)
			}
			s.Drives = append(s.Drives, vm.Drive{
				Slot: slot, CDROM: d.isCDROM(), BootIndex: 1 + slices.Index(order, slot),
			})
		}
	}
	return s, nil
}

// findBootOrder returns the devices from which a VM boots, in their order: those of the
// configuration, or by default disks, CD drives and network cards.
func findBootOrder(conf map[string]string) []string {
	if order, ok := strings.CutPrefix(conf["boot"], "order="); ok {
		return strings.Split(order, ";")
	}
	var disks, cds, nics []string
	for _, k := range slices.Sorted(maps.Keys(conf)) {
		switch {
		case reNet.MatchString(k):
			nics = append(nics, k)
		case isDriveName(k):
			if d, err := parseDrive(conf[k]); err == nil && d.isCDROM() {
				cds = append(cds, k)
			} else {
				disks = append(disks, k)
			}
		}
	}
	return slices.Concat(disks, cds, nics)
}

func parseSMBIOSUUID(v string) string {
	props, err := parseProperties(v, "")
	if err != nil {
		return ""
	}
	return props["uuid"]
}

// parseNIC parses a network device such as virtio=MAC,bridge=vmbr0 or model=virtio,macaddr=MAC.
func parseNIC(v string) vm.NIC {
	n := vm.NIC{MAC: reNetMAC.FindString(v)}
	for part := range strings.SplitSeq(v, ",") {
		k, val, _ := strings.Cut(part, "=")
		switch {
		case k == "model":
			n.Model = val
		case reNetModel.MatchString(k):
			n.Model = k
		case k == "link_down":
			n.Down = isTrue(val)
		}
	}
	return n
}

// formatKVMErrors returns the lines of QEMU's error output as Proxmox VE shows them. There the
// program's name is kvm.
func formatKVMErrors(text string) []string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		_, message, ok := strings.Cut(line, "qemu-system-x86_64: ")
		if ok {
			line = "kvm: " + message
		}
		if line != "" {
			out = append(out, line)
		}
	}
	return out
}

func formatExit(code int) string {
	return "start failed: QEMU exited with code " + strconv.Itoa(code)
}
