// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// vmConfig is the configuration of a VM: options by name, as text.
type vmConfig map[string]string

// diskSlot matches the names of disk slots.
var diskSlot = regexp.MustCompile(`^(scsi|virtio|sata|ide)\d+$`)

// property reads one key of an option such as "local-lvm:vm-1-disk-0,size=20G".
func property(option, key string) string {
	for part := range strings.SplitSeq(option, ",") {
		if k, v, ok := strings.Cut(part, "="); ok && k == key {
			return v
		}
	}

	return ""
}

// setProperty sets one key of an option, or removes it where value is empty. The other
// parts and their order stay.
func setProperty(option, key, value string) string {
	var parts []string
	if option != "" {
		parts = strings.Split(option, ",")
	}

	found := false
	kept := parts[:0]

	for _, part := range parts {
		k, _, ok := strings.Cut(part, "=")
		if !ok || k != key {
			kept = append(kept, part)

			continue
		}

		if value != "" && !found {
			kept = append(kept, key+"="+value)
		}

		found = true
	}

	if !found && value != "" {
		kept = append(kept, key+"="+value)
	}

	return strings.Join(kept, ",")
}

// nicModel matches the network models of qemu-server, which may carry the MAC.
var nicModel = regexp.MustCompile(
	`^(e1000|e1000-82540em|e1000-82544gc|e1000-82545em|e1000e|i82551|i82557b|i82559er|` +
		`ne2k_isa|ne2k_pci|pcnet|rtl8139|virtio|vmxnet3)$`)

const defaultModel = "virtio"

// macOf gives the MAC of an option netN: virtio=AA:BB:..,bridge=vmbr0.
func macOf(net string) string {
	for part := range strings.SplitSeq(net, ",") {
		key, value, ok := strings.Cut(part, "=")
		if ok && (nicModel.MatchString(key) || key == "macaddr") {
			return strings.ToUpper(value)
		}
	}

	return ""
}

// editNet gives the option net0 of a machine: model, MAC and all else as the clone has
// them, the bridge and VLAN as wanted. An empty bridge keeps the template's; VLAN 0
// keeps no tag only where the bridge was chosen, else the template's.
func editNet(net, bridge string, vlan int) string {
	if net == "" {
		if bridge == "" {
			return ""
		}

		net = defaultModel
	}

	if bridge != "" {
		net = setProperty(net, "bridge", bridge)
	}

	if vlan > 0 {
		net = setProperty(net, "tag", strconv.Itoa(vlan))
	} else if bridge != "" {
		net = setProperty(net, "tag", "")
	}

	return net
}

// disk is one disk of a VM.
type disk struct {
	Slot, Storage string
	Bytes         int64
}

// firstDisk finds the disk a machine boots from: the first disk of `boot`, else the
// lowest slot in the order scsi, virtio, sata, ide.
func firstDisk(c vmConfig) (disk, bool) {
	slots := bootOrder(c["boot"])

	var rest []string

	for name := range c {
		if diskSlot.MatchString(name) {
			rest = append(rest, name)
		}
	}

	slices.SortFunc(rest, compareSlots)

	for _, slot := range append(slots, rest...) {
		option := c[slot]
		if !diskSlot.MatchString(slot) || option == "" || isCDROM(option) {
			continue
		}

		storage, _, ok := strings.Cut(option, ":")
		if !ok {
			continue
		}

		size, err := parseSize(property(option, "size"))
		if err != nil {
			size = 0
		}

		return disk{Slot: slot, Storage: storage, Bytes: size}, true
	}

	return disk{}, false
}

// bootOrder reads `boot: order=scsi0;ide2;net0`.
func bootOrder(boot string) []string {
	order := property(boot, "order")
	if order == "" {
		return nil
	}

	return strings.Split(order, ";")
}

func compareSlots(a, b string) int {
	rank := func(slot string) int {
		bus := strings.TrimRight(slot, "0123456789")
		number, _ := strconv.Atoi(slot[len(bus):])

		return slices.Index([]string{"scsi", "virtio", "sata", "ide"}, bus)*1000 + number
	}

	return rank(a) - rank(b)
}

// isCDROM tells whether a drive is a CD-ROM; cloud-init drives are.
func isCDROM(option string) bool {
	return property(option, "media") == "cdrom" || isCloudInit(option)
}

// isCloudInit tells whether a drive is Proxmox's own cloud-init drive.
func isCloudInit(option string) bool {
	volume, _, _ := strings.Cut(option, ",")

	return strings.HasSuffix(volume, "cloudinit") || strings.Contains(volume, "-cloudinit.")
}

// cloudInitSlot gives the slot of the cloud-init drive, or "".
func cloudInitSlot(c vmConfig) string {
	var slots []string

	for name, option := range c {
		if diskSlot.MatchString(name) && isCloudInit(option) {
			slots = append(slots, name)
		}
	}

	slices.SortFunc(slots, compareSlots)

	if len(slots) == 0 {
		return ""
	}

	return slots[0]
}

// isoSlot gives the slot that the NoCloud ISO goes to: the cloud-init drive's, else
// the first of ide2, ide0 and sata5 that is free or an empty CD-ROM drive; "" if none.
func isoSlot(c vmConfig) string {
	if slot := cloudInitSlot(c); slot != "" {
		return slot
	}

	for _, slot := range []string{"ide2", "ide0", "sata5"} {
		if option := c[slot]; option == "" || strings.HasPrefix(option, "none,") {
			return slot
		}
	}

	return ""
}

// agentEnabled reads the option agent: "1", "enabled=1,fstrim_cloned_disks=1".
func agentEnabled(option string) bool {
	first, _, _ := strings.Cut(option, ",")

	return first == "1" || property(option, "enabled") == "1"
}

// parseSize reads a size as Proxmox writes it: 512, 4M, 20G, 1T (1024 each).
func parseSize(s string) (int64, error) {
	if s == "" {
		return 0, errors.New("parse size: it is empty")
	}

	unit := int64(1)

	switch s[len(s)-1] {
	case 'K':
		unit = 1 << 10
	case 'M':
		unit = 1 << 20
	case 'G':
		unit = 1 << 30
	case 'T':
		unit = 1 << 40
	}

	digits := s
	if unit > 1 {
		digits = s[:len(s)-1]
	}

	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n < 0 || math.IsInf(n, 0) || math.IsNaN(n) || n*float64(unit) > math.MaxInt64/2 {
		return 0, fmt.Errorf("parse size %.40q: want a number with K, M, G or T", s)
	}

	return int64(n * float64(unit)), nil
}

const mebibyte = 1 << 20

// formatSize gives bytes as Proxmox takes them for a disk, rounded up to a MiB.
func formatSize(bytes int64) string {
	mib := (bytes + mebibyte - 1) / mebibyte
	if mib%1024 == 0 {
		return strconv.FormatInt(mib/1024, 10) + "G"
	}

	return strconv.FormatInt(mib, 10) + "M"
}

// memoryMiB gives bytes as the option memory takes them, rounded up.
func memoryMiB(bytes int64) string {
	return strconv.FormatInt((bytes+mebibyte-1)/mebibyte, 10)
}

// ipConfig gives the option ipconfig0.
func ipConfig(n hypervisor.NetworkOptions) string {
	if len(n.Addresses) == 0 {
		return "ip=dhcp"
	}

	parts := make([]string, 0, len(n.Addresses)+len(n.Gateways))
	has := map[string]bool{}

	for _, address := range n.Addresses {
		has[suffix(address)] = true
		parts = append(parts, "ip"+suffix(address)+"="+address)
	}

	for _, gateway := range n.Gateways {
		// Proxmox refuses a gateway without an address of its family.
		if has[suffix(gateway)] {
			parts = append(parts, "gw"+suffix(gateway)+"="+gateway)
		}
	}

	return strings.Join(parts, ",")
}

// suffix is what the options of an address's family end with.
func suffix(address string) string {
	if strings.Contains(address, ":") {
		return "6"
	}

	return ""
}
