// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guestapi

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/test/heap"
)

// Ten thousand machines that asked and went leave nothing behind.
func TestLimitsEndWithTheirMachines(t *testing.T) { //nolint:paralleltest // it looks at the heap
	limits, now := &Limits{}, time.Unix(1e9, 0)

	heap.Ends(t, "limits", func(number int) {
		now = now.Add(claimEvery)

		if refused := limits.Genuine(types.UID(fmt.Sprintf("uid-%d", number)), now); refused != nil {
			t.Fatalf("machine %d: %+v", number, refused)
		}
	})

	if most := 2 * claimBurst; len(limits.claims) > most {
		t.Errorf("%d machines are remembered, want %d at most", len(limits.claims), most)
	}
}
