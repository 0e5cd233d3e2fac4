// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Check connects and verifies; see hypervisor.Provider.
func (p *Provider) Check(ctx context.Context) (hypervisor.Info, error) {
	version, err := p.client.version(ctx)
	return hypervisor.Info{Version: version.Version}, err
}

// Resolve finds templates; see hypervisor.Provider.
func (p *Provider) Resolve(ctx context.Context, ref hypervisor.TemplateRef, want hypervisor.Shape) ([]hypervisor.Template, error) {
	snap, _, err := p.listing.get(ctx, p.watch.listQuiet)
	if err != nil {
		return nil, err
	}
	return p.resolve(ctx, snap, ref)
}
