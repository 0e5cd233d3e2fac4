// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

// The option runners.includeNamespaceInHostname reaches the machines.
func TestNamespaceInHostNames(t *testing.T) {
	t.Parallel()

	for _, isIncluded := range []bool{true, false} {
		cfg := config.Default()
		cfg.Runners.IncludeNamespaceInHostname = isIncluded

		if got, err := newMachineSettings(cfg, identity{}); err != nil || got.NamespaceInHostname != isIncluded {
			t.Errorf("includeNamespaceInHostname %t: %t, %v", isIncluded, got.NamespaceInHostname, err)
		}
	}
}
