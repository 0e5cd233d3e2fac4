// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/property"
)

// TestSimulatedJobs simulates jobs, and checks that each completes on a machine of its own and that nothing is left. It logs how busy the operator
// and the API server are. SCALE_JOBS is the number of jobs in an hour, SCALE_MINUTES is how long jobs are queued,
// SCALE_POOLS is the number of pools, each in a namespace of its own, SCALE_MAX is the maximum number of machines of each (0
// means no limit), and SCALE_KEPT is the number of completed jobs that each namespace already has.
func TestSimulatedJobs(t *testing.T) {
	load := Load{
		JobsPerHour: readNumber(t, "SCALE_JOBS", 600), Minutes: readNumber(t, "SCALE_MINUTES", 3),
		Pools: readNumber(t, "SCALE_POOLS", 2), Kept: readNumber(t, "SCALE_KEPT", 20), JobTime: 2 * time.Minute,
		MaxReplicas: int32(readNumber(t, "SCALE_MAX", 0)),
	}

	synctest.Test(t, func(t *testing.T) {
		result := Simulate(t, load)
		t.Logf("%+v\n%s", load, result)

		if result.Completed != result.Jobs || result.Machines != result.Jobs || result.Left > 0 || result.Refused > 0 {
			t.Errorf("%d of %d jobs completed, %d machines were started, %d machines and claims are left, %d requests were refused",
				result.Completed, result.Jobs, result.Machines, result.Left, result.Refused)
		}
	})
}

// TestSoakWritesOfBurst simulates short jobs that are queued within a minute, many more than their pool may have machines. Each job
// has seven writes of its objects. The status of the claim is written before the clone, and after half a minute, because the
// machine takes longer than that to start. The status of the job is written when it waits until other jobs end, and with its
// timeline. The last jobs wait for half a minute after the pool has room for them. The status of the pool and events are of all
// jobs together.
func TestSoakWritesOfBurst(t *testing.T) {
	property.Soak(t)

	load := Load{Minutes: 1, Pools: 1, MaxReplicas: 50, JobTime: 2 * time.Second}

	synctest.Test(t, func(t *testing.T) {
		load.JobsPerHour = readNumber(t, "SCALE_BURST", 300) * 60
		result := Simulate(t, load)
		t.Logf("%+v\n%s", load, result)

		for kind, most := range map[string]float64{
			"patch machineclaims status": 2.05, "patch runnerjobs status": 2.2, "patch runnerpools status": 0.2, "post events": 0.05,
		} {
			if got := result.Kinds[kind]; got > most {
				t.Errorf("%s: %.2f per job, want at most %.2f", kind, got, most)
			}
		}

		if result.Completed != result.Jobs || result.Left > 0 {
			t.Errorf("%d of %d jobs completed, %d machines and claims are left", result.Completed, result.Jobs, result.Left)
		}
	})
}

func readNumber(t *testing.T, name string, fallback int) int {
	t.Helper()

	text := os.Getenv(name)
	if text == "" {
		return fallback
	}

	out, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}

	return out
}
