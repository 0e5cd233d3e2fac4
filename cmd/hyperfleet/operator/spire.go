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

// NewSPIRERegistry returns the client of the SPIRE server that attests machines, and nil if the configuration
// names none. The client connects when it is first used, so the operator starts and becomes ready without the
// server.
func NewSPIRERegistry(
	cfg v1alpha1.SPIRE, operatorUID string, observe func(operation string, took time.Duration, err error),
) (*spire.Registry, error) {
	if cfg.Address == "" {
		return nil, nil //nolint:nilnil // a missing SPIRE server is not an error
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

// validateSPIRE checks the rules that the types of the configuration cannot express.
func validateSPIRE(cfg v1alpha1.SPIRE) error {
	if cfg.Address == "" {
		if cfg.MachineAddress != "" || cfg.WorkloadAPI != "" {
			return strictyaml.ErrorAt("identity.spire.address",
				"it is required with identity.spire.machineAddress and identity.spire.workloadAPI")
		}

		return nil
	}

	if cfg.Timeout <= 0 {
		return strictyaml.ErrorAt("identity.spire.timeout", "it must be a positive duration such as 10s")
	}

	if cfg.MachineAddress == "" {
		return strictyaml.ErrorAt("identity.spire.machineAddress",
			"it must be the address at which machines reach the SPIRE server, such as spire.example.com:8081")
	}

	unused, err := NewSPIRERegistry(cfg, "", nil)
	if err != nil {
		return strictyaml.ErrorAt("identity.spire", "%w", err)
	}

	return unused.Close()
}
