// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// TestFloor checks cases that TestFloorIsOptimal does not cover.
func TestFloor(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tc := range []struct {
		reason string
		in     pve.FloorInput
		want   time.Duration
	}{
		{"no jobs", pve.FloorInput{Clone: s}, 0},
		{"no limits", pve.FloorInput{Jobs: 100, Clone: 3 * s, Job: s}, 4 * s},
	} {
		if got := pve.Floor(tc.in); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.reason, got, tc.want)
		}
	}
}

// TestFloorIsOptimal compares with a search over all schedules that start clones at integer times.
// That is sufficient, because all durations are integers.
func TestFloorIsOptimal(t *testing.T) {
	t.Parallel()
	for jobs := 1; jobs <= 4; jobs++ {
		for slots := 1; slots <= 2; slots++ {
			for vms := range 4 {
				for d := range 16 {
					in := pve.FloorInput{
						Jobs: jobs, CloneSlots: slots, MaxVMs: vms, Clone: time.Duration(1 + d&1), Boot: time.Duration(d >> 1 & 1),
						Job: time.Duration(1 + d>>2&1), Destroy: time.Duration(d >> 3 & 1),
					}
					if got, want := pve.Floor(in), findBestFinish(in, nil, 0); got != want {
						t.Fatalf("%+v: %d, the best schedule takes %d", in, got, want)
					}
				}
			}
		}
	}
}

// findBestFinish starts the next clone now or one time unit later and returns the better result.
func findBestFinish(in pve.FloorInput, starts []time.Duration, now time.Duration) time.Duration {
	if len(starts) == in.Jobs {
		return starts[in.Jobs-1] + in.Clone + in.Boot + in.Job
	}
	const never = 1 << 30
	life := in.Clone + in.Boot + in.Job + in.Destroy
	if now > time.Duration(in.Jobs)*life {
		return never
	}
	cloning, alive := 0, 0
	for _, s := range starts {
		if s+in.Clone > now {
			cloning++
		}
		if s+life > now {
			alive++
		}
	}
	best := time.Duration(never)
	if cloning < in.CloneSlots && (in.MaxVMs == 0 || alive < in.MaxVMs) {
		best = findBestFinish(in, append(append([]time.Duration(nil), starts...), now), now)
	}
	return min(best, findBestFinish(in, starts, now+1))
}

// TestFloorOfServer uses the values of the model: three local storages with two clones each, or one
// shared storage.
func TestFloorOfServer(t *testing.T) {
	t.Parallel()
	for want, shared := range map[int]bool{6: false, 2: true} {
		a := startCluster(t, func(m *pve.Model) {
			if shared {
				*m = m.WithSharedStorage()
			}
			m.Delays = pve.Delays{Clone: time.Second, Start: time.Second, Boot: time.Second}
		})
		in := a.s.FloorInput(10, time.Minute)
		if in.CloneSlots != want || in.Boot != 2*time.Second {
			t.Errorf("input %+v", in)
		}
	}
}
