// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// BaseConfig returns the configuration with which an operator connects to the site. Its id range contains
// all VMIDs of the tests.
func (s *Site) BaseConfig() hypervisor.Config {
	return hypervisor.Config{
		Endpoint: s.endpoint, TLS: s.tls.Clone(), Credentials: s.credentials,
		DefaultStorage: s.storage, ISOStorage: s.iso, DefaultNetwork: s.bridge, ResourcePool: s.pool,
		IDMin: s.firstVMID, IDMax: s.firstVMID + vmidsOfTests - 1,
	}
}

// Machine is the state of a machine that the administrator reads.
type Machine struct {
	Node string
	// Config is the machine's configuration as one line of JSON.
	Config string
}

// ListMachines returns all machines and templates of the site by VMID, and the cloud-init ISOs of operators.
func (s *Site) ListMachines(ctx context.Context) (machines map[int]Machine, isoNames []string, err error) {
	rows, err := s.listVMs(ctx)
	if err != nil {
		return nil, nil, err
	}

	out := map[int]Machine{}

	for _, r := range rows {
		config, err := s.readConfig(ctx, r)
		if err != nil {
			return nil, nil, err
		}

		if config != nil {
			out[r.VMID] = Machine{Node: r.Node, Config: formatConfig(config)}
		}
	}

	isos, err := s.listISOs(ctx)

	names := make([]string, 0, len(isos))
	for _, iso := range isos {
		names = append(names, iso.Node+" "+iso.VolID)
	}

	return out, names, err
}
