// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"context"
	"path"
	"sync"
	"testing"
	"time"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// NewPair sets up an environment with two operators, a leader and a standby.
func NewPair(t testing.TB, env *kube.Env, binary string, life Lifecycle) *Fixture {
	t.Helper()

	w := newFixture(t, env, binary, life, nil, fastElection())
	w.Standby = newOperatorRunner(t, w.Fleet, binary, fastElection(), env.Config, config.AreaRunners)

	if err := w.Standby.start(t.Context()); err != nil {
		t.Fatal(err)
	}

	return w
}

// FreezeLeader queues the jobs, and suspends the leader at its first clone call before the leader receives
// the response. Then it forwards webhooks to the standby, as a Service does when a replica is not ready.
// The returned function resumes the leader, and waits until the leader has exited, because a leader that
// has lost its lease must exit.
func (w *Fixture) FreezeLeader(jobs int) (thaw func()) {
	t := w.Fleet.T

	var once sync.Once

	frozen := make(chan struct{})
	t.Cleanup(w.Fleet.PVE.OnCall(func(call pve.Call) {
		if path.Base(call.Path) == "clone" {
			once.Do(func() {
				w.Operators.freeze()
				w.Fleet.Front.Serve(w.trap.wrapWebhooks(w.Standby.front))
				close(frozen)
			})
		}
	}))

	w.QueueJobs(jobs)

	select {
	case <-frozen:
	case <-time.After(waitTimeout):
		t.Fatal("nothing was cloned")
	}

	return func() {
		w.Operators.thaw()

		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
		defer cancel()

		if err := w.Operators.waitForExit(ctx); err != nil {
			t.Errorf("the leader has lost its lease but did not exit: %v", err)
		}
	}
}
