// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Accel is the accelerator that runs the guest's instructions.
type Accel string

// The accelerators.
const (
	// TCG is software emulation, which works on every machine.
	TCG Accel = "tcg"
	// KVM is the virtualization of the processor. The package never selects KVM on its own, even if
	// /dev/kvm can be opened, because guests can crash under nested KVM.
	KVM Accel = "kvm"
)

// Spec describes a machine.
type Spec struct {
	// Name appears in the title of the process. UUID is the SMBIOS system UUID.
	Name, UUID string
	// Accel is the accelerator. Default: TCG.
	Accel Accel
	// Q35 selects the chipset q35 instead of i440fx.
	Q35 bool
	// MemoryMiB is the memory. Sockets times Cores is the number of processors.
	MemoryMiB      int64
	Sockets, Cores int
	// SCSI is the controller of scsi drives: virtio-scsi-pci, virtio-scsi-single (one controller per
	// drive), lsi, lsi53c810, megasas or pvscsi.
	SCSI   string
	Drives []Drive
	NICs   []NIC
	// Kernel, Initrd and Append, if Kernel is set, replace the disk's boot loader.
	Kernel, Initrd, Append string
	// Agent adds the serial port of the QEMU guest agent.
	Agent bool
	// NoReboot ends the machine when the guest reboots.
	NoReboot bool
}

// Drive is a disk or a CD drive.
type Drive struct {
	// Slot is the bus and the number of the drive: scsi0, virtio3, ide2, sata5.
	Slot string
	// File is the path of the image. Empty means a CD drive without a medium.
	File string
	// Format is qcow2 or raw.
	Format string
	CDROM  bool
	// BootIndex is the position in the boot order, starting at 1. The machine does not boot from a
	// drive with 0.
	BootIndex int
}

// NIC is a network card on a user-mode network of its own. On this network, 10.0.2.2 is the loopback
// address of the host.
type NIC struct {
	// Model is QEMU's name of the card, or virtio for virtio-net-pci.
	Model, MAC string
	// Down disconnects the cable.
	Down bool
	// BootIndex is the position in the boot order, as in Drive.
	BootIndex int
}

// The file descriptors that the process inherits.
const (
	fdQMP = 3 + iota
	fdSerial
	fdAgent
)

var reSlot = regexp.MustCompile(`^(scsi|virtio|ide|sata)(\d+)$`)

// controllers returns the supported controllers of scsi drives.
func controllers() []string {
	return []string{"virtio-scsi-pci", "virtio-scsi-single", "lsi", "lsi53c810", "megasas", "pvscsi"}
}

// Args returns QEMU's arguments.
func (s *Spec) Args() ([]string, error) {
	a := &args{}
	a.add("-name", escape(s.Name), "-nodefaults", "-no-user-config", "-display", "none", "-vga", "none")
	chipset := "pc"
	if s.Q35 {
		chipset = "q35"
	}
	a.add("-machine", chipset)
	switch s.Accel {
	case TCG, "":
		a.add("-accel", "tcg,thread=multi", "-cpu", "max")
	case KVM:
		a.add("-accel", "kvm", "-cpu", "host")
	default:
		return nil, fmt.Errorf("accelerator %q: use tcg or kvm", s.Accel)
	}
	sockets, cores := max(1, s.Sockets), max(1, s.Cores)
	a.add("-smp", fmt.Sprintf("cpus=%d,sockets=%d,cores=%d,threads=1", sockets*cores, sockets, cores))
	a.add("-m", strconv.FormatInt(s.MemoryMiB, 10)+"M")
	if s.UUID != "" {
		a.add("-uuid", s.UUID)
	}
	if s.NoReboot {
		a.add("-no-reboot")
	}
	a.addChannels(s.Agent)
	a.addKernel(s)
	if err := a.addDrives(s); err != nil {
		return nil, err
	}
	a.addNICs(s.NICs)
	return a.list, nil
}

type args struct{ list []string }

func (a *args) add(words ...string) { a.list = append(a.list, words...) }

// addChannels adds the control socket, the console and the agent's port.
func (a *args) addChannels(hasAgent bool) {
	a.add("-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", fdQMP), "-mon", "chardev=qmp,mode=control")
	a.add("-chardev", fmt.Sprintf("socket,id=serial0,fd=%d", fdSerial), "-serial", "chardev:serial0")
	if hasAgent {
		a.add("-device", "virtio-serial-pci,id=qga0-bus", "-chardev", fmt.Sprintf("socket,id=qga0,fd=%d", fdAgent),
			"-device", "virtserialport,id="+agentPort+",chardev=qga0,name=org.qemu.guest_agent.0")
	}
}

func (a *args) addKernel(s *Spec) {
	for _, o := range [][2]string{{"-kernel", s.Kernel}, {"-initrd", s.Initrd}, {"-append", s.Append}} {
		if s.Kernel != "" && o[1] != "" {
			a.add(o[0], o[1])
		}
	}
}

func (a *args) addDrives(s *Spec) error {
	if err := a.addSCSI(s); err != nil {
		return err
	}
	if slices.ContainsFunc(s.Drives, func(d Drive) bool { return strings.HasPrefix(d.Slot, "sata") }) {
		a.add("-device", "ahci,id=ahci0")
	}
	for _, d := range s.Drives {
		device, err := d.formatDevice(s)
		if err != nil {
			return err
		}
		drive := "if=none,id=" + driveID(d.Slot)
		if d.File != "" {
			// The machines are temporary, so a crash of the host may lose data.
			drive += ",cache=unsafe,format=" + d.Format + ",file=" + escape(d.File)
		}
		if d.CDROM {
			drive += ",media=cdrom,readonly=on"
		}
		if d.BootIndex > 0 {
			device += ",bootindex=" + strconv.Itoa(d.BootIndex)
		}
		a.add("-drive", drive, "-device", device)
	}
	return nil
}

// addSCSI adds the controllers of scsi drives.
func (a *args) addSCSI(s *Spec) error {
	if !slices.ContainsFunc(s.Drives, func(d Drive) bool { return strings.HasPrefix(d.Slot, "scsi") }) {
		return nil
	}
	switch {
	case !slices.Contains(controllers(), s.SCSI):
		return fmt.Errorf("scsi controller %q: use one of %s", s.SCSI, strings.Join(controllers(), ", "))
	case s.SCSI != "virtio-scsi-single":
		a.add("-device", s.SCSI+",id=scsihw0")
		return nil
	}
	for _, d := range s.Drives {
		if n, ok := strings.CutPrefix(d.Slot, "scsi"); ok {
			a.add("-device", "virtio-scsi-pci,id=scsihw"+n)
		}
	}
	return nil
}

// formatDevice returns the device argument of a drive, with the bus and the address that Proxmox VE
// uses (PVE::QemuServer::print_drivedevice_full).
func (d Drive) formatDevice(s *Spec) (string, error) {
	parts := reSlot.FindStringSubmatch(d.Slot)
	if parts == nil {
		return "", fmt.Errorf("drive %q: unknown slot: use scsi, virtio, ide or sata with a number", d.Slot)
	}
	n, err := strconv.Atoi(parts[2])
	if err != nil {
		return "", errors.Join(fmt.Errorf("drive %q", d.Slot), err)
	}
	kind := "hd"
	if d.CDROM {
		kind = "cd"
	}
	tail := ",drive=" + driveID(d.Slot) + ",id=" + d.Slot
	switch {
	case parts[1] == "virtio":
		return "virtio-blk-pci" + tail, nil
	case parts[1] == "sata":
		return fmt.Sprintf("ide-%s,bus=ahci0.%d", kind, n) + tail, nil
	case parts[1] == "ide" && s.Q35:
		return fmt.Sprintf("ide-%s,bus=ide.%d", kind, n) + tail, nil
	case parts[1] == "ide":
		return fmt.Sprintf("ide-%s,bus=ide.%d,unit=%d", kind, n/2, n%2) + tail, nil //nolint:mnd // a channel has two drives
	case s.SCSI == "virtio-scsi-single":
		return fmt.Sprintf("scsi-%s,bus=scsihw%d.0,channel=0,scsi-id=0,lun=%d", kind, n, n) + tail, nil
	case s.SCSI == "virtio-scsi-pci":
		return fmt.Sprintf("scsi-%s,bus=scsihw0.0,channel=0,scsi-id=0,lun=%d", kind, n) + tail, nil
	default:
		return fmt.Sprintf("scsi-%s,bus=scsihw0.0,scsi-id=%d", kind, n) + tail, nil
	}
}

func (a *args) addNICs(nics []NIC) {
	for i, n := range nics {
		id, model := netID(i), n.Model
		if model == "virtio" {
			model = "virtio-net-pci"
		}
		device := fmt.Sprintf("%s,netdev=%s,id=%s,mac=%s", model, id, id, n.MAC)
		if !strings.HasPrefix(model, "ne2k_isa") {
			device += ",romfile=" // without a boot ROM, no machine boots from the network by accident
		}
		if n.BootIndex > 0 {
			device += ",bootindex=" + strconv.Itoa(n.BootIndex)
		}
		a.add("-netdev", "user,id="+id, "-device", device)
	}
}

func netID(i int) string { return "net" + strconv.Itoa(i) }

func driveID(slot string) string { return "drive-" + slot }

// escape doubles commas, because a comma separates QEMU's options.
func escape(v string) string { return strings.ReplaceAll(v, ",", ",,") }
