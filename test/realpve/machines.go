// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Reach is how an operator reaches the site: the ids are those that nobody else uses.
func (s *Site) Reach() hypervisor.Config {
	return hypervisor.Config{
		Endpoint: s.endpoint, TLS: s.tls.Clone(), Credentials: s.credentials,
		DefaultStorage: s.storage, ISOStorage: s.iso, DefaultNetwork: s.bridge, ResourcePool: s.pool,
		IDMin: s.first, IDMax: s.first + idsOfTests - 1,
	}
}

// Machine is one as the administrator sees it.
type Machine struct {
	Node string
	// Config is its configuration in one line.
	Config string
}

// Machines gives all there are by id, templates too, and the cloud-init ISOs of operators.
func (s *Site) Machines(ctx context.Context) (map[int]Machine, []string, error) {
	rows, err := s.rows(ctx)
	if err != nil {
		return nil, nil, err
	}

	out := map[int]Machine{}

	for _, r := range rows {
		config, err := s.config(ctx, r)
		if err != nil {
			return nil, nil, err
		}

		if config != nil {
			out[r.VMID] = Machine{Node: r.Node, Config: text(config)}
		}
	}

	isos, err := s.isos(ctx)

	names := make([]string, 0, len(isos))
	for _, iso := range isos {
		names = append(names, iso.Node+" "+iso.VolID)
	}

	return out, names, err
}
