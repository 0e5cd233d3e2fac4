// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestLeastObjectsAreAccepted(t *testing.T) {
	t.Parallel()

	for name, base := range map[string]string{
		"HypervisorCluster": baseCluster, "HypervisorMachineTemplate": baseTemplate,
		"RunnerPool": basePool, "MachineClaim": baseClaim, "RunnerJob": baseJob,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if err := strict().Create(t.Context(), parse(t, base), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}
