// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/test/kill"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// This benchmark starts an operator while ten thousand machines wait for a job.
func BenchmarkTenThousandMachines(b *testing.B) {
	for b.Loop() {
		restart := kill.MeasureRestart(b, kube.Start(b, newKubeOptions()...), binary, 10_000)
		b.ReportMetric(restart.Duration.Seconds(), "s/restart")
		b.ReportMetric(float64(restart.RSS)/(1<<20), "MiB")
	}
}

// A new operator is not connected to the hypervisor yet. It must not report that all machines are not ready.
func TestStartWithMachines(t *testing.T) {
	t.Parallel() // after all others, because its machines remain

	if restart := kill.MeasureRestart(t, env, binary, 20); len(restart.ChangedObjects) > 0 {
		t.Errorf("these were written: %q", restart.ChangedObjects)
	}
}
