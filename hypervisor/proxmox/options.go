// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// vmConfig is the configuration of a VM. It maps option names to their values as text.
type vmConfig map[string]string

// diskSlotPattern matches the names of disk slots.
var diskSlotPattern = regexp.MustCompile(`^(scsi|virtio|sata|ide)\d+$`)

// parseProperty returns the value of one key of an option such as "local-lvm:vm-1-disk-0,size=20G", or ""
// if the option does not have the key.
func parseProperty(option, key string) string {
	for part := range strings.SplitSeq(option, ",") {
		if k, v, ok := strings.Cut(part, "="); ok && k == key {
			return v
		}
	}

	return ""
}

// setProperty sets one key of an option. An empty value removes the key. The other parts of the option and
// their order do not change.
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

// nicModelPattern matches the network models of qemu-server. A model can be the key that holds the MAC
// address.
var nicModelPattern = regexp.MustCompile(
	`^(e1000|e1000-82540em|e1000-82544gc|e1000-82545em|e1000e|i82551|i82557b|i82559er|` +
		`ne2k_isa|ne2k_pci|pcnet|rtl8139|virtio|vmxnet3)$`)

const defaultNICModel = "virtio"

// parseMAC returns the MAC address of an option netN such as virtio=AA:BB:..,bridge=vmbr0, or "" if the
// option has none.
func parseMAC(net string) string {
	for part := range strings.SplitSeq(net, ",") {
		key, value, ok := strings.Cut(part, "=")
		if ok && (nicModelPattern.MatchString(key) || key == "macaddr") {
			return strings.ToUpper(value)
		}
	}

	return ""
}

// editNet returns the option net0 of a machine. The model, the MAC address and all other properties stay as
// in the clone. An empty bridge keeps the template's bridge. VLAN 0 removes the VLAN tag if a bridge is
// given, and keeps the template's tag otherwise.
func editNet(net, bridge string, vlan int) string {
	if net == "" {
		if bridge == "" {
			return ""
		}

		net = defaultNICModel
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

type disk struct {
	Slot, Storage string
	Bytes         int64
}

// findBootDisk returns the disk that a machine boots from. This is the first disk in the `boot` option, or
// otherwise the lowest slot in the order scsi, virtio, sata, ide. The size is 0 if it cannot be parsed.
func findBootDisk(c vmConfig) (disk, bool) {
	slots := parseBootOrder(c["boot"])

	var rest []string

	for name := range c {
		if diskSlotPattern.MatchString(name) {
			rest = append(rest, name)
		}
	}

	slices.SortFunc(rest, compareSlots)

	for _, slot := range append(slots, rest...) {
		volume := c[slot]
		if !diskSlotPattern.MatchString(slot) || volume == "" || isCDROM(volume) {
			continue
		}

		storage, _, ok := strings.Cut(volume, ":")
		if !ok {
			continue
		}

		size, err := parseSize(parseProperty(volume, "size"))
		if err != nil {
			size = 0
		}

		return disk{Slot: slot, Storage: storage, Bytes: size}, true
	}

	return disk{}, false
}

// parseBootOrder returns the devices of an option such as `boot: order=scsi0;ide2;net0`.
func parseBootOrder(boot string) []string {
	order := parseProperty(boot, "order")
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

// isCDROM reports whether a drive is a CD-ROM drive. A cloud-init drive is one too.
func isCDROM(option string) bool {
	return parseProperty(option, "media") == "cdrom" || isCloudInit(option)
}

// isCloudInit reports whether a drive is Proxmox's own cloud-init drive.
func isCloudInit(option string) bool {
	volume, _, _ := strings.Cut(option, ",")

	return strings.HasSuffix(volume, "cloudinit") || strings.Contains(volume, "-cloudinit.")
}

// findCloudInitSlot returns the lowest slot of a cloud-init drive, or "" if the VM has none.
func findCloudInitSlot(c vmConfig) string {
	var slots []string

	for name, option := range c {
		if diskSlotPattern.MatchString(name) && isCloudInit(option) {
			slots = append(slots, name)
		}
	}

	slices.SortFunc(slots, compareSlots)

	if len(slots) == 0 {
		return ""
	}

	return slots[0]
}

// findISOSlot returns the slot for the NoCloud ISO: the slot of the cloud-init drive, or otherwise the
// first of ide2, ide0 and sata5 that is free or holds an empty CD-ROM drive. It returns "" if no slot is
// free.
func findISOSlot(c vmConfig) string {
	if slot := findCloudInitSlot(c); slot != "" {
		return slot
	}

	for _, slot := range []string{"ide2", "ide0", "sata5"} {
		if option := c[slot]; option == "" || strings.HasPrefix(option, "none,") {
			return slot
		}
	}

	return ""
}

// isAgentEnabled reports whether the option agent enables the guest agent, as in "1" or
// "enabled=1,fstrim_cloned_disks=1".
func isAgentEnabled(option string) bool {
	first, _, _ := strings.Cut(option, ",")

	return first == "1" || parseProperty(option, "enabled") == "1"
}

// parseSize parses a size as Proxmox writes it: 512, 4M, 20G, 1T. Each unit is 1024 times the previous one.
func parseSize(s string) (int64, error) {
	if s == "" {
		return 0, errors.New("parse size: the text is empty")
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
		return 0, fmt.Errorf("parse size %.40q: the text must be a number, optionally with the unit K, M, G or T", s)
	}

	return int64(n * float64(unit)), nil
}

const mebibyte = 1 << 20

// formatSize formats a disk size in bytes for Proxmox. The size is rounded up to a MiB.
func formatSize(bytes int64) string {
	mib := (bytes + mebibyte - 1) / mebibyte
	if mib%1024 == 0 {
		return strconv.FormatInt(mib/1024, 10) + "G"
	}

	return strconv.FormatInt(mib, 10) + "M"
}

// formatMemory formats an amount of memory in bytes as MiB for the option memory. The amount is rounded up.
func formatMemory(bytes int64) string {
	return strconv.FormatInt((bytes+mebibyte-1)/mebibyte, 10)
}

// formatIPConfig returns the value of the option ipconfig0.
func formatIPConfig(n hypervisor.NetworkOptions) string {
	if len(n.Addresses) == 0 {
		return "ip=dhcp"
	}

	parts := make([]string, 0, len(n.Addresses)+len(n.Gateways))
	has := map[string]bool{}

	for _, address := range n.Addresses {
		has[familySuffix(address)] = true
		parts = append(parts, "ip"+familySuffix(address)+"="+address)
	}

	for _, gateway := range n.Gateways {
		// Proxmox rejects a gateway without an address of the same family.
		if has[familySuffix(gateway)] {
			parts = append(parts, "gw"+familySuffix(gateway)+"="+gateway)
		}
	}

	return strings.Join(parts, ",")
}

// parseIPConfig returns the static addresses in the value of an option ipconfig0, and none for DHCP.
func parseIPConfig(value string) []string {
	var out []string

	for part := range strings.SplitSeq(value, ",") {
		key, address, _ := strings.Cut(part, "=")
		if _, err := netip.ParsePrefix(address); err == nil && (key == "ip" || key == "ip6") {
			out = append(out, address)
		}
	}

	return out
}

// familySuffix returns the suffix of the option keys for the family of an address: "6" for IPv6, "" for
// IPv4.
func familySuffix(address string) string {
	if strings.Contains(address, ":") {
		return "6"
	}

	return ""
}
