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

// configure writes the options of the clone with one call, and then grows its disk. It reads the ownership
// record right before the call. The digest makes Proxmox reject the call if the configuration has changed
// in between.
func (p *Provider) configure(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc,
) (hypervisor.State, error) {
	if err := p.ensureISO(ctx, m, spec, seed); err != nil {
		return "", err
	}

	if m.isoState == isoUploading {
		m.message = "waits for its cloud-init ISO"

		return hypervisor.StateCreating, nil
	}

	config, err := p.readConfig(ctx, m)
	if err != nil {
		p.requireInspection(m)

		return "", err
	}

	if !p.isOwn(m, config) || config["lock"] != "" {
		p.requireInspection(m)

		return "", p.evaluateConfig(ctx, m, config)
	}

	p.recordConfig(m, config)

	switch {
	case p.isConfigured(m, config):
		m.lacksISO = false
	case spec.Standby && p.isPrepared(config):
		m.lacksISO = true
	default:
		if config, err = p.removeTemplateTPM(ctx, m, spec, config); err != nil {
			return "", err
		}

		if err := p.writeMachineOptions(ctx, m, spec, config); err != nil {
			return "", err
		}

		m.lacksISO = spec.Standby
	}

	return p.growDisk(ctx, m, spec, config)
}

// writeMachineOptions writes the options of the machine with one call.
func (p *Provider) writeMachineOptions(ctx context.Context, m *machine, spec hypervisor.MachineSpec, config vmConfig) error {
	options, err := p.buildOptions(m, spec, config)
	if err != nil {
		return err
	}

	if err := p.writeConfig(ctx, m, options); err != nil {
		return err
	}

	p.recordDevices(m.id, config, options)

	if net := options["net0"]; net != "" {
		m.mac = parseMAC(net)
	}

	return nil
}

// buildOptions returns the options of a machine, based on the configuration of the clone. They replace
// options of the template, such as tags, onboot and protection.
func (p *Provider) buildOptions(m *machine, spec hypervisor.MachineSpec, config vmConfig) (map[string]string, error) {
	options := map[string]string{
		"cores": strconv.Itoa(spec.Shape.CPU), "memory": formatMemory(spec.Shape.Memory),
		"tags":   buildTags(p.id, spec.Owner.Pool, p.config.Tags),
		"onboot": "0", "protection": "0",
	}

	if digest := config["digest"]; digest != "" {
		options["digest"] = digest
	}

	if name := spec.Hostname; name != "" && name != config["name"] {
		options["name"] = name
	}

	if net := editNet(config["net0"], p.selectBridge(spec.Shape), spec.Shape.VLAN); net != "" && net != config["net0"] {
		options["net0"] = net
	}

	if config["serial0"] == "" {
		options["serial0"] = "socket"
	}

	maps.Copy(options, buildCPUOptions(config, spec.Shape))
	maps.Copy(options, buildTPMOptions(spec, config))

	devices, err := buildDeviceOptions(config, spec.Shape)
	if err != nil {
		return nil, err
	}

	maps.Copy(options, devices)

	if spec.Shape.CloudInitSource == hypervisor.SourceBuiltin {
		return options, p.addBuiltinOptions(options, m, spec, config)
	}

	slot := findISOSlot(config)
	if slot == "" {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "NoDriveForISO",
			"%s has no cloud-init drive and none of ide2, ide0 and sata5 is free for the cloud-init ISO: "+
				"free one with: qm set %s --delete ide2", formatRef(spec.Template), m.templateID(spec))
	}

	if !spec.Standby {
		options[slot] = m.volid + ",media=cdrom"
	}

	return options, nil
}

// templateID returns the ID of the machine's template for a command, and TEMPLATE if an earlier process has cloned the machine
// from a template that the spec does not name by its ID.
func (m *machine) templateID(spec hypervisor.MachineSpec) string {
	if id := cmp.Or(spec.Template.ID, m.origin.template); id != 0 {
		return strconv.Itoa(id)
	}

	return "TEMPLATE"
}

// cpuHost is the type of CPU with all features of the node's CPU.
const cpuHost = "host"

// buildCPUOptions adjusts the template's sockets, vcpus, balloon and type of CPU to the resources of the shape.
func buildCPUOptions(config vmConfig, shape hypervisor.Shape) map[string]string {
	options := map[string]string{}

	if s := config["sockets"]; s != "" && s != "1" {
		options["sockets"] = "1"
	}

	if kind, _, _ := strings.Cut(strings.TrimPrefix(config["cpu"], "cputype="), ","); shape.Nested && kind != cpuHost {
		options["cpu"] = cpuHost
	}

	if v, err := strconv.Atoi(config["vcpus"]); err == nil && v > 0 {
		options["vcpus"] = strconv.Itoa(shape.CPU)
	}

	if b, err := strconv.ParseInt(config["balloon"], 10, 64); err == nil && b*mebibyte > shape.Memory {
		options["balloon"] = formatMemory(shape.Memory)
	}

	return options
}

// growDisk grows the boot disk to the size of the shape. A disk never shrinks.
func (p *Provider) growDisk(ctx context.Context, m *machine, spec hypervisor.MachineSpec, config vmConfig,
) (hypervisor.State, error) {
	bootDisk, ok := findBootDisk(config)
	if m.isDiskGrown || !ok || spec.Shape.Disk <= bootDisk.Bytes {
		m.phase = m.configuredPhase()

		return "", nil
	}

	upid, err := p.client.resizeDisk(ctx, m.node, m.id, bootDisk.Slot, formatSize(spec.Shape.Disk))
	if err != nil {
		if !hypervisor.Is(err, hypervisor.Rejected) {
			p.requireInspection(m)
		}

		return "", err
	}

	m.message = "its disk is being resized"
	m.phase = phaseResizing

	if upid == "" {
		return "", nil
	}

	m.task = p.watcher.watchTask(upid, m.owner, nil)

	return hypervisor.StateCreating, nil
}

// finishGrow processes the result of the resize task. If the task has failed, the size of the disk decides.
func (p *Provider) finishGrow(ctx context.Context, m *machine, spec hypervisor.MachineSpec) error {
	exit := "OK"
	if m.task != nil {
		exit, _ = m.task.result()
	}

	if isTaskSuccess(exit) {
		m.task, m.isDiskGrown = nil, true
		m.phase = m.configuredPhase()

		return nil
	}

	// If the configuration cannot be read, the next step reads it again, so that the failure of the task is not lost.
	config, err := p.readConfig(ctx, m)
	if err != nil {
		return err
	}

	m.task, m.phase = nil, phaseCloned

	if bootDisk, ok := findBootDisk(config); ok && bootDisk.Bytes >= spec.Shape.Disk {
		m.isDiskGrown = true

		return nil
	}

	return p.handleTaskFailure(m, m.origin.storage, "ResizeFailed", fmt.Sprintf("grow the disk of machine %d", m.id), exit)
}

// addBuiltinOptions adds the options of Proxmox's own cloud-init.
func (p *Provider) addBuiltinOptions(options map[string]string, m *machine, spec hypervisor.MachineSpec, config vmConfig) error {
	if findCloudInitSlot(config) == "" {
		bootDisk, _ := findBootDisk(config)

		return hypervisor.Errorf(hypervisor.Rejected, "NoCloudInitDrive",
			"%s has no cloud-init drive, which cloudInitSource builtin needs: "+
				"add one with: qm set %s --ide2 %s:cloudinit",
			formatRef(spec.Template), m.templateID(spec), cmp.Or(bootDisk.Storage, "STORAGE"))
	}

	// The files that cicustom names are written when the standby machine is released.
	if spec.Standby {
		return nil
	}

	snippet := func(part string) string {
		return part + "=" + spec.Shape.SnippetsStorage + ":snippets/" + p.id.snippetName(m.owner.UID, part)
	}

	options["cicustom"] = snippet("user") + "," + snippet("meta")
	options["ipconfig0"] = formatIPConfig(spec.Network)
	// An upgrade at each boot takes minutes, and updates are the job of the image.
	options["ciupgrade"] = "0"

	if len(spec.Network.DNSServers) > 0 {
		options["nameserver"] = strings.Join(spec.Network.DNSServers, " ")
	}

	if len(spec.Network.SearchDomains) > 0 {
		options["searchdomain"] = strings.Join(spec.Network.SearchDomains, " ")
	}

	return nil
}
