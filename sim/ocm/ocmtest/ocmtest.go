// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocmtest

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/ocm"
)

// New starts an agent and ends it when the test ends. The test fails if a client made
// something that the hub's webhook does not take, or if the agent itself met an error.
// Make the namespaces first: what is cleaned up last is made first.
func New(t testing.TB, options ocm.Options) *ocm.Agent {
	t.Helper()

	agent, err := ocm.Start(options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		agent.Close()

		for _, violation := range agent.Violations() {
			t.Errorf("ocm: violation: %s: %s", violation.Work, violation.What)
		}

		for _, err := range agent.Problems() {
			t.Errorf("ocm: %v", err)
		}
	})

	return agent
}
