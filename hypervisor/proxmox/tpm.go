// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	tpmSlot = "tpmstate0"
	// newTPM follows the storage. The size is ignored, a TPM's state has 4 MiB; its format is
	// always raw (API viewer, tpmstate0). Proxmox makes the TPM's seeds, and has the node's
	// authority certify its endorsement key, when the machine starts first.
	newTPM = ":1,version=v2.0"
)

// dropTPM removes a TPM that the machine has from its template: with its seeds, both would be
// one TPM, and each could pass for the other. It gives the configuration after that. It is
// only for machines whose options were not written yet: what they have is not their own.
func (p *Provider) dropTPM(ctx context.Context, m *machine, spec hypervisor.MachineSpec, config vmConfig) (vmConfig, error) {
	if !spec.Shape.TPM || config[tpmSlot] == "" || p.prepared(config) {
		return config, nil
	}

	// A protected machine's disks cannot be removed.
	if config["protection"] == "1" {
		if err := p.change(ctx, m, map[string]string{"protection": "0"}); err != nil {
			return nil, err
		}
	}

	// By force: else the state would stay as a disk of the machine's.
	if err := p.change(ctx, m, map[string]string{"delete": tpmSlot, "force": "1"}); err != nil {
		return nil, err
	}

	config, err := p.readConfig(ctx, m)
	if err != nil {
		p.invalidate(m)
	}

	return config, err
}

// change writes options of a machine.
func (p *Provider) change(ctx context.Context, m *machine, options map[string]string) error {
	err := p.client.configure(ctx, m.node, m.id, options)
	if err != nil && !hypervisor.Is(err, hypervisor.Rejected) && !hypervisor.Is(err, hypervisor.Busy) {
		p.invalidate(m)
	}

	return err
}

// tpmOptions give a machine a TPM of its own, beside its first disk.
func tpmOptions(spec hypervisor.MachineSpec, config vmConfig) map[string]string {
	first, ok := firstDisk(config)
	if !spec.Shape.TPM || config[tpmSlot] != "" || !ok {
		return nil
	}

	return map[string]string{tpmSlot: first.Storage + newTPM}
}
