// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"time"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Registry is the SPIRE server that attests machines; nil where none is configured. It
// connects when it is first used: the operator starts, and is ready, without it.
func Registry(
	cfg v1alpha1.SPIRE, operatorUID string, observe func(operation string, took time.Duration, err error),
) (*spire.Registry, error) {
	if cfg.Address == "" {
		return nil, nil //nolint:nilnil // none is no error
	}

	out, err := spire.New(spire.Options{
		Address: cfg.Address, WorkloadAPI: cfg.WorkloadAPI, TrustDomain: cfg.TrustDomain, MachineAddress: cfg.MachineAddress,
		Timeout: cfg.Timeout, OperatorUID: operatorUID, Observe: observe,
	})
	if err != nil {
		return nil, fmt.Errorf("set up SPIRE: %w", err)
	}

	return out, nil
}

// spireSettings checks what the types can't say.
func spireSettings(cfg v1alpha1.SPIRE) error {
	if cfg.Address == "" {
		if cfg.MachineAddress != "" || cfg.WorkloadAPI != "" {
			return strictyaml.ErrorAt("identity.spire.address", "it is needed with identity.spire.machineAddress and workloadAPI")
		}

		return nil
	}

	if cfg.Timeout <= 0 {
		return strictyaml.ErrorAt("identity.spire.timeout", "it must be a positive duration such as 10s")
	}

	if cfg.MachineAddress == "" {
		return strictyaml.ErrorAt("identity.spire.machineAddress",
			"it must be the SPIRE server's address as machines see it, such as spire.example.com:8081")
	}

	unused, err := Registry(cfg, "", nil)
	if err != nil {
		return strictyaml.ErrorAt("identity.spire", "%w", err)
	}

	return unused.Close()
}
