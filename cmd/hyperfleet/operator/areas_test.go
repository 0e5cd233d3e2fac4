// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

// All areas run unless some are chosen, each under its own name in the Lease.
func TestAllAreasRunByDefault(t *testing.T) {
	t.Parallel()

	cfg := v1alpha1.Default()
	if want := []string{"runners", "networking", "hosts", "bridge"}; !slices.Equal(cfg.Controllers, want) {
		t.Errorf("%v, want %v", cfg.Controllers, want)
	}

	if err := validate(cfg); err != nil {
		t.Errorf("the default configuration: %v", err)
	}

	cfg.Controllers = []string{"runners", "dns"}
	if err := validate(cfg); err == nil || !strings.Contains(err.Error(), `there is no area "dns": choose of [runners networking hosts bridge]`) {
		t.Errorf("an area that there is not: %v", err)
	}

	if got := leaderElectionID([]string{"runners", "networking", "runners"}); got != "hyperfleet-networking-runners" {
		t.Errorf("the Lease is %s", got)
	}
}
