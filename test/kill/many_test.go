// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/test/kill"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// What an operator takes that starts where ten thousand machines wait for a job.
func BenchmarkTenThousandMachines(b *testing.B) {
	for b.Loop() {
		restart := kill.MeasureRestart(b, kube.Start(b, kinds()...), binary, 10_000)
		b.ReportMetric(restart.Duration.Seconds(), "s/restart")
		b.ReportMetric(float64(restart.RSS)/(1<<20), "MiB")
	}
}

// An operator that has just been started has no connection to the hypervisor yet, and does not
// write of each machine that it is not ready.
func TestStartWithMachines(t *testing.T) {
	t.Parallel() // after all others: its machines stay

	if restart := kill.MeasureRestart(t, env, binary, 20); len(restart.ChangedObjects) > 0 {
		t.Errorf("these were written: %q", restart.ChangedObjects)
	}
}
