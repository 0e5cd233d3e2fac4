// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"fmt"
	"slices"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/google/uuid"
	"libvirt.org/go/libvirtxml"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Names in a definition.
const (
	busVirtio     = "virtio"
	agentChannel  = "org.qemu.guest_agent.0"
	deviceCDROM   = "cdrom"
	diskTarget    = "vda"
	isoTarget     = "sdz"
	busSCSI       = "scsi"
	modelSCSI     = "virtio-scsi"
	archX86       = "x86_64"
	archARM       = "aarch64"
	actionDestroy = "destroy"
	tpmVersion    = "2.0"
	// policyOptional starts a machine also if the file in a drive no longer exists.
	policyOptional = "optional"
)

// modeHost is the mode of a CPU with all features of the host's CPU.
const modeHost = "host-passthrough"

// definition is what the definition of a machine is made from.
type definition struct {
	uuid     golibvirt.UUID
	name     string
	record   Record
	mac      string
	diskPath string
	isoPath  string
	shape    hypervisor.Shape
	template diskTemplate
	facts    facts
	config   hypervisor.Host
	// losesISO is true if the ISO is deleted before the definition is used. A person can then start the machine without it.
	losesISO bool
}

// mayHaveRun and neverStarted are the values of the parameter isStarted.
const mayHaveRun, neverStarted = true, false

// encode returns the definition as XML. isStarted is the mark in the record that the guest may have run.
func (d definition) encode(isStarted bool) (string, error) {
	element, err := encodeMetadata(d.record, isStarted)
	if err != nil {
		return "", err
	}

	out := d.base()
	out.Type, out.Name, out.UUID = d.facts.domainType, d.name, uuid.UUID(d.uuid).String()
	out.Title, out.Description = d.record.MachineClaim.Namespace+"/"+d.record.MachineClaim.Name, ""
	out.Metadata = &libvirtxml.DomainMetadata{XML: element}

	const mebibyte = 1 << 20
	memory := uint((d.shape.Memory + mebibyte - 1) / mebibyte) //nolint:gosec // the size of a machine
	out.Memory = &libvirtxml.DomainMemory{Value: memory, Unit: "MiB"}
	out.CurrentMemory, out.MaximumMemory = nil, nil
	out.VCPU = &libvirtxml.DomainVCPU{Value: uint(d.shape.CPU)}
	out.VCPUs = nil

	if d.shape.Nested {
		out.CPU = &libvirtxml.DomainCPU{Mode: modeHost}
	}

	// A machine that powers off is not started again. A machine that crashes counts as powered off.
	out.OnPoweroff, out.OnReboot, out.OnCrash = actionDestroy, "restart", actionDestroy

	d.setDisks(out.Devices)
	d.setInterface(out.Devices)
	d.setTPM(out.Devices)

	if err := d.setDevices(out.Devices); err != nil {
		return "", err
	}

	text, err := out.Marshal()
	if err != nil {
		return "", fmt.Errorf("encode definition of machine %d: %w", d.record.ID, err)
	}

	return text, nil
}

// base returns a copy of the template's domain, or the definition for a template that is only a volume.
func (d definition) base() *libvirtxml.Domain {
	if d.template.domain != nil {
		out := *d.template.domain
		devices := *out.Devices
		out.Devices, out.ID, out.GenID = &devices, nil, nil

		// libvirt creates a file with the variables of the firmware for each machine.
		if out.OS != nil && out.OS.NVRam != nil {
			os := *out.OS
			os.NVRam = &libvirtxml.DomainNVRam{Template: os.NVRam.Template}
			out.OS = &os
		}

		return &out
	}

	zero := uint(0)
	out := &libvirtxml.Domain{
		OS:       &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: d.facts.arch, Type: "hvm"}},
		Features: &libvirtxml.DomainFeatureList{ACPI: &libvirtxml.DomainFeature{}},
		CPU:      &libvirtxml.DomainCPU{Mode: "maximum"},
		Clock:    &libvirtxml.DomainClock{Offset: "utc"},
		Devices: &libvirtxml.DomainDeviceList{
			Serials: []libvirtxml.DomainSerial{{
				Source: &libvirtxml.DomainChardevSource{Pty: &libvirtxml.DomainChardevSourcePty{}},
				Target: &libvirtxml.DomainSerialTarget{Port: &zero},
			}},
			Channels: []libvirtxml.DomainChannel{{
				Source: &libvirtxml.DomainChardevSource{UNIX: &libvirtxml.DomainChardevSourceUNIX{Mode: "bind"}},
				Target: &libvirtxml.DomainChannelTarget{VirtIO: &libvirtxml.DomainChannelTargetVirtIO{Name: agentChannel}},
			}},
			RNGs: []libvirtxml.DomainRNG{{
				Model: busVirtio,
				Backend: &libvirtxml.DomainRNGBackend{
					Random: &libvirtxml.DomainRNGBackendRandom{Device: "/dev/urandom"},
				},
			}},
		},
	}

	if d.facts.domainType == typeKVM {
		out.CPU.Mode = modeHost
	}

	switch d.facts.arch {
	case archX86:
		out.OS.Type.Machine = "q35"
		// The console then also says that the disk has no boot loader.
		out.OS.BIOS = &libvirtxml.DomainBIOS{UseSerial: "yes"}
	case archARM:
		out.OS.Type.Machine, out.OS.Firmware = "virt", "efi"
	}

	return out
}

// setDisks replaces the disks by the machine's disk and its cloud-init ISO.
func (d definition) setDisks(devices *libvirtxml.DomainDeviceList) {
	target := libvirtxml.DomainDiskTarget{Dev: diskTarget, Bus: busVirtio}
	policy := ""

	if d.losesISO {
		policy = policyOptional
	}
	if d.template.domain != nil && templateDisk(d.template.domain).Target != nil {
		target = *templateDisk(d.template.domain).Target
	}

	devices.Disks = []libvirtxml.DomainDisk{
		{
			Device: "disk",
			// A machine's disk lives as long as its job, so a crash of the host may lose it.
			Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: formatQCOW2, Cache: "unsafe", Discard: "unmap"},
			Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: d.diskPath}},
			Target: &target,
		},
		{
			Device: deviceCDROM,
			Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: formatRaw},
			// A prepared machine has no ISO yet.
			Source:   &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: d.isoPath}, StartupPolicy: policy},
			Target:   &libvirtxml.DomainDiskTarget{Dev: isoTarget, Bus: busSCSI},
			ReadOnly: &libvirtxml.DomainDiskReadOnly{},
			Address:  &libvirtxml.DomainAddress{Drive: &libvirtxml.DomainAddressDrive{Controller: addSCSIController(devices)}},
		},
	}
}

// setTPM gives the machine an emulated TPM if it must have one, or if its template has one. The state of the TPM belongs to
// the UUID of the domain, so it is never that of the template. libvirt creates it at the first start and deletes it with
// the definition.
func (d definition) setTPM(devices *libvirtxml.DomainDeviceList) {
	isEmulated := hasEmulatedTPM(devices)
	if !isEmulated && !d.shape.TPM {
		return
	}

	tpm := libvirtxml.DomainTPM{Backend: &libvirtxml.DomainTPMBackend{
		Emulator: &libvirtxml.DomainTPMBackendEmulator{Version: tpmVersion},
	}}
	if isEmulated {
		tpm.Model = devices.TPMs[0].Model
	}

	devices.TPMs = []libvirtxml.DomainTPM{tpm}
}

func hasEmulatedTPM(devices *libvirtxml.DomainDeviceList) bool {
	return slices.ContainsFunc(devices.TPMs, func(t libvirtxml.DomainTPM) bool {
		return t.Backend != nil && t.Backend.Emulator != nil
	})
}

// addSCSIController adds a controller for the cloud-init ISO, and returns its index. The kernels of cloud images have
// drivers for virtio, but some have none for SATA and IDE, for example Debian's.
func addSCSIController(devices *libvirtxml.DomainDeviceList) *uint {
	var next uint

	for i := range devices.Controllers {
		if c := &devices.Controllers[i]; c.Type == busSCSI && c.Index != nil {
			next = max(next, *c.Index+1)
		}
	}

	devices.Controllers = append(slices.Clip(devices.Controllers), libvirtxml.DomainController{
		Type: busSCSI, Index: &next, Model: modelSCSI,
	})

	return &next
}

// setInterface replaces the interfaces by the machine's.
func (d definition) setInterface(devices *libvirtxml.DomainDeviceList) {
	model := busVirtio
	if len(devices.Interfaces) > 0 && devices.Interfaces[0].Model != nil {
		model = devices.Interfaces[0].Model.Type
	}

	source := &libvirtxml.DomainInterfaceSource{User: &libvirtxml.DomainInterfaceSourceUser{}}

	switch {
	case d.shape.Bridge != "":
		source = &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: d.shape.Bridge}}
	case d.config.Bridge != "":
		source = &libvirtxml.DomainInterfaceSource{Bridge: &libvirtxml.DomainInterfaceSourceBridge{Bridge: d.config.Bridge}}
	case d.config.Network != "":
		source = &libvirtxml.DomainInterfaceSource{Network: &libvirtxml.DomainInterfaceSourceNetwork{Network: d.config.Network}}
	}

	devices.Interfaces = []libvirtxml.DomainInterface{{
		MAC: &libvirtxml.DomainInterfaceMAC{Address: d.mac}, Source: source, Model: &libvirtxml.DomainInterfaceModel{Type: model},
	}}
}
