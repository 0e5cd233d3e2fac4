// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/kill"
)

// The leader freezes while it creates machines. The other replica finishes the jobs with the same machines, and the former
// leader does no harm when it continues.
func TestLeaderIsLost(t *testing.T) {
	life := kill.Lifecycle{Name: "two jobs run", Jobs: 2}
	w := kill.NewPair(t, env, binary, life)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the leader:\n%s\nthe other:\n%s", w.Operators.Logs(), w.Standby.Logs())
		}
	})

	life.Drive = func(w *kill.Fixture) {
		thaw := w.FreezeLeader(life.Jobs)

		w.Fleet.EventuallyJobsDone(life.Jobs)
		thaw()
	}
	w.Run(life)

	// The former leader tried to continue with its old state while its machines were being created, and was refused.
	if !strings.Contains(w.Operators.Logs(), "the leader's lease was renewed") {
		t.Error("nothing was refused to the leader that came back")
	}

	for _, broken := range w.Violations() {
		t.Error(broken)
	}

	if made := w.Machines.CountMachines(); made != life.Jobs {
		t.Errorf("%d machines were made for %d jobs", made, life.Jobs)
	}
}
