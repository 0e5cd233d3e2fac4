// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Operators that use the same hypervisor divide its limits, and each has at least 1.
func TestLimitsAreDivided(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct{ operators, clones, calls, wantClones, wantCalls int }{
		{0, 0, 0, 0, 0}, {1, 6, 8, 6, 8}, {3, 6, 8, 2, 2}, {3, 2, 3, 1, 1}, {2, 0, 0, 1, 2},
	} {
		config := hypervisor.Config{ClonesPerStorage: tc.clones, CallsPerNode: tc.calls}
		divideLimits(&config, tc.operators)

		if config.ClonesPerStorage != tc.wantClones || config.CallsPerNode != tc.wantCalls {
			t.Errorf("%+v: %d clones and %d calls", tc, config.ClonesPerStorage, config.CallsPerNode)
		}
	}
}
