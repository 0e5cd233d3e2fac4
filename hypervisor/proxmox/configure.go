// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// configure gives the clone its options with one write, then grows its disk. The record
// is read right before, and the digest ties the write to what was read.
func (p *Provider) configure(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc,
) (hypervisor.State, error) {
	if err := p.uploadISO(ctx, m, spec, seed); err != nil {
		return "", err
	}

	if m.isoState == isoUploading {
		m.message = "waits for its cloud-init ISO"

		return hypervisor.StateCreating, nil
	}

	config, err := p.readConfig(ctx, m)
	if err != nil {
		p.invalidate(m)

		return "", err
	}

	if !p.mine(m, config) || config["lock"] != "" {
		p.invalidate(m)

		return "", p.judge(ctx, m, config)
	}

	p.learn(m, config)

	switch {
	case p.configured(m, config):
		m.held = false
	case spec.Standby && p.prepared(config):
		m.held = true
	default:
		if config, err = p.dropTPM(ctx, m, spec, config); err != nil {
			return "", err
		}

		if err := p.writeOptions(ctx, m, spec, config); err != nil {
			return "", err
		}

		m.held = spec.Standby
	}

	return p.grow(ctx, m, spec, config)
}

// writeOptions makes the one write.
func (p *Provider) writeOptions(ctx context.Context, m *machine, spec hypervisor.MachineSpec, config vmConfig) error {
	options, err := p.machineOptions(m, spec, config)
	if err != nil {
		return err
	}

	if err := p.change(ctx, m, options); err != nil {
		return err
	}

	if net := options["net0"]; net != "" {
		m.mac = macOf(net)
	}

	return nil
}

// machineOptions are the options of a machine, worked out from its clone's. They
// replace what the template would bring along: tags, onboot and protection among them.
func (p *Provider) machineOptions(m *machine, spec hypervisor.MachineSpec, config vmConfig) (map[string]string, error) {
	options := map[string]string{
		"cores": strconv.Itoa(spec.Shape.CPU), "memory": memoryMiB(spec.Shape.Memory),
		"tags":   machineTags(p.id, spec.Owner.Pool, p.config.Tags),
		"onboot": "0", "protection": "0",
	}

	if digest := config["digest"]; digest != "" {
		options["digest"] = digest
	}

	if name := spec.Hostname; name != "" && name != config["name"] {
		options["name"] = name
	}

	bridge := cmp.Or(spec.Shape.Bridge, p.config.DefaultNetwork)
	if net := editNet(config["net0"], bridge, spec.Shape.VLAN); net != "" && net != config["net0"] {
		options["net0"] = net
	}

	if config["serial0"] == "" {
		options["serial0"] = "socket"
	}

	maps.Copy(options, reconcileCPU(config, spec.Shape))
	maps.Copy(options, tpmOptions(spec, config))

	if spec.Shape.CloudInitSource == hypervisor.SourceBuiltin {
		return options, p.builtinOptions(options, m, spec, config)
	}

	slot := isoSlot(config)
	if slot == "" {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "NoDriveForISO",
			"%s has no cloud-init drive and none of ide2, ide0 and sata5 is free for the cloud-init ISO: "+
				"free one with: qm set TEMPLATE --delete ide2", refText(spec.Template))
	}

	if !spec.Standby {
		options[slot] = m.volid + ",media=cdrom"
	}

	return options, nil
}

// reconcileCPU makes the template's sockets, vcpus and balloon agree with the resources.
func reconcileCPU(config vmConfig, want hypervisor.Shape) map[string]string {
	options := map[string]string{}

	if s := config["sockets"]; s != "" && s != "1" {
		options["sockets"] = "1"
	}

	if v, err := strconv.Atoi(config["vcpus"]); err == nil && v > 0 {
		options["vcpus"] = strconv.Itoa(want.CPU)
	}

	if b, err := strconv.ParseInt(config["balloon"], 10, 64); err == nil && b*mebibyte > want.Memory {
		options["balloon"] = memoryMiB(want.Memory)
	}

	return options
}

// grow makes the first disk as large as wanted; disks never shrink.
func (p *Provider) grow(ctx context.Context, m *machine, spec hypervisor.MachineSpec, config vmConfig,
) (hypervisor.State, error) {
	first, ok := firstDisk(config)
	if m.diskDone || !ok || spec.Shape.Disk <= first.Bytes {
		m.phase = m.made()

		return "", nil
	}

	upid, err := p.client.resize(ctx, m.node, m.id, first.Slot, formatSize(spec.Shape.Disk))
	if err != nil {
		if !hypervisor.Is(err, hypervisor.Rejected) {
			p.invalidate(m)
		}

		return "", err
	}

	m.message = "its disk is being grown"
	m.phase = phaseResizing

	if upid == "" {
		return "", nil
	}

	m.work = p.watch.add(upid, m.owner, nil)

	return hypervisor.StateCreating, nil
}

// growEnded takes the resize's result. Whatever the task says, the size decides.
func (p *Provider) growEnded(ctx context.Context, m *machine, spec hypervisor.MachineSpec) error {
	exit := "OK"
	if m.work != nil {
		exit, _ = m.work.result()
	}

	m.work = nil

	if taskSucceeded(exit) {
		m.diskDone = true
		m.phase = m.made()

		return nil
	}

	m.phase = phaseCloned

	config, err := p.readConfig(ctx, m)
	if err != nil {
		return err
	}

	if first, ok := firstDisk(config); ok && first.Bytes >= spec.Shape.Disk {
		m.diskDone = true

		return nil
	}

	return p.taskFailed(m, "ResizeFailed", fmt.Sprintf("grow the disk of machine %d", m.id), exit)
}

// builtinOptions are the options of Proxmox's own cloud-init.
func (p *Provider) builtinOptions(options map[string]string, m *machine, spec hypervisor.MachineSpec, config vmConfig) error {
	if cloudInitSlot(config) == "" {
		return hypervisor.Errorf(hypervisor.Rejected, "NoCloudInitDrive",
			"%s has no cloud-init drive, which cloudInitSource builtin needs: "+
				"add one with: qm set TEMPLATE --ide2 STORAGE:cloudinit", refText(spec.Template))
	}

	// What cicustom names is written when the machine is released.
	if spec.Standby {
		return nil
	}

	at := func(part string) string {
		return part + "=" + spec.Shape.SnippetsStorage + ":snippets/" + p.id.snippetName(m.owner.UID, part)
	}

	options["cicustom"] = at("user") + "," + at("meta")
	options["ipconfig0"] = ipConfig(spec.Network)
	// Off: an upgrade at each boot is minutes lost, and the image's own business.
	options["ciupgrade"] = "0"

	if len(spec.Network.Servers) > 0 {
		options["nameserver"] = strings.Join(spec.Network.Servers, " ")
	}

	if len(spec.Network.Search) > 0 {
		options["searchdomain"] = strings.Join(spec.Network.Search, " ")
	}

	return nil
}
