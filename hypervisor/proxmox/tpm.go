// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	tpmSlot = "tpmstate0"
	// newTPMVolume is appended to the storage name. Proxmox ignores the size: a TPM's state has 4 MiB, and
	// its format is always raw (API viewer, tpmstate0). At the first start of the machine, Proxmox creates
	// the TPM's seeds, and the node's certificate authority certifies the endorsement key.
	newTPMVolume = ":1,version=v2.0"
)

// removeTemplateTPM removes the TPM that the machine has from its template, and returns the configuration
// after the removal. With the template's seeds, both VMs would have the same TPM, and each could
// impersonate the other. It does nothing for machines whose options are already written, because those have
// a TPM of their own.
func (p *Provider) removeTemplateTPM(
	ctx context.Context, m *machine, spec hypervisor.MachineSpec, config vmConfig,
) (vmConfig, error) {
	if !spec.Shape.TPM || config[tpmSlot] == "" || p.isPrepared(config) {
		return config, nil
	}

	// The disks of a protected machine cannot be removed.
	if config["protection"] == "1" {
		if err := p.writeConfig(ctx, m, map[string]string{"protection": "0"}); err != nil {
			return nil, err
		}
	}

	// Without force, the old TPM state would stay as an unused disk of the machine.
	if err := p.writeConfig(ctx, m, map[string]string{"delete": tpmSlot, "force": "1"}); err != nil {
		return nil, err
	}

	config, err := p.readConfig(ctx, m)
	if err != nil {
		p.requireInspection(m)
	}

	return config, err
}

// writeConfig writes options of a machine. After an error other than Rejected and Busy, the state of the
// machine is unknown, and the next step inspects the machine.
func (p *Provider) writeConfig(ctx context.Context, m *machine, options map[string]string) error {
	err := p.client.writeConfig(ctx, m.node, m.id, options)
	if err != nil && !hypervisor.Is(err, hypervisor.Rejected) && !hypervisor.Is(err, hypervisor.Busy) {
		p.requireInspection(m)
	}

	return err
}

// buildTPMOptions returns the option that adds a new TPM on the storage of the boot disk. It returns nil if
// the machine needs no TPM, already has one, or has no disk.
func buildTPMOptions(spec hypervisor.MachineSpec, config vmConfig) map[string]string {
	bootDisk, ok := findBootDisk(config)
	if !spec.Shape.TPM || config[tpmSlot] != "" || !ok {
		return nil
	}

	return map[string]string{tpmSlot: bootDisk.Storage + newTPMVolume}
}
