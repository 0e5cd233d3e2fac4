// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"
	"time"
)

// TestStoppedMachinesShareListings: however many machines stop, their runners are listed at
// most once per listingPause, none waits for longer than that, and each listing that serves
// a machine was begun after its stop.
func TestStoppedMachinesShareListings(t *testing.T) {
	const (
		machines = 200
		apart    = 50 * time.Millisecond
	)

	var shared listings

	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	waiting := map[time.Time]time.Time{} // stop: when it is looked at next
	made := 0

	for now := begin; now.Before(begin.Add(machines*apart + listingPause)); now = now.Add(apart) {
		if now.Before(begin.Add(machines * apart)) {
			waiting[now.Add(-time.Millisecond)] = now
		}

		for stopped, next := range waiting {
			if now.Before(next) {
				continue
			}

			before := shared.begun["github acme"]

			if left := shared.wait("github acme", stopped, now); left > 0 {
				waiting[stopped] = now.Add(left)

				continue
			}

			if at := shared.begun["github acme"]; at != before {
				made++
			} else if !at.After(stopped) {
				t.Fatalf("a machine that stopped at %s was served by the listing of %s", stopped, at)
			}

			if waited := now.Sub(stopped); waited > listingPause+apart {
				t.Fatalf("a machine waited %s for its listing", waited)
			}

			delete(waiting, stopped)
		}
	}

	if len(waiting) > 0 {
		t.Errorf("%d machines were never served", len(waiting))
	}

	if most := int(machines*apart/listingPause) + 2; made > most || made < 2 {
		t.Errorf("%d listings for %d machines in %s, want 2 to %d", made, machines, machines*apart, most)
	}

	shared.wait("gitlab acme", begin.Add(time.Hour), begin.Add(time.Hour))

	if len(shared.begun) != 1 {
		t.Errorf("%d platforms are remembered an hour later, want the one that was listed", len(shared.begun))
	}
}

// TestFirstStopWaitsForNothing: a machine that stops by itself is not held up.
func TestFirstStopWaitsForNothing(t *testing.T) {
	var shared listings

	now := time.Now()
	if left := shared.wait("github acme", now.Add(-time.Second), now); left != 0 {
		t.Errorf("waits %s", left)
	}

	if left := shared.wait("gitlab acme", now.Add(-time.Second), now); left != 0 {
		t.Errorf("another platform's waits %s", left)
	}
}
