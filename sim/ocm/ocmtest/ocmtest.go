// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocmtest

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/ocm"
)

// New starts an agent and stops it when the test ends. The test fails if a client created a ManifestWork
// that the hub's webhook rejects, or if the agent itself had an error. Create namespaces before you call
// New: tests clean up in reverse order, and the agent must stop before the namespaces are deleted.
func New(t testing.TB, options ocm.Options) *ocm.Agent {
	t.Helper()

	agent, err := ocm.Start(options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		agent.Close()

		for _, violation := range agent.Violations() {
			t.Errorf("ocm: violation: %s: %s", violation.Work, violation.Message)
		}

		for _, err := range agent.Problems() {
			t.Errorf("ocm: %v", err)
		}
	})

	return agent
}
