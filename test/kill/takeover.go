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

// NewPair makes a world with two operators: the one that leads, and one that waits.
func NewPair(t testing.TB, env *kube.Env, binary string, life Life) *World {
	t.Helper()

	w := newWorld(t, env, binary, life, nil, elected())
	w.Standby = newOperators(t, w.Fleet, binary, elected(), env.Config, config.AreaRunners)

	if err := w.Standby.start(t.Context()); err != nil {
		t.Fatal(err)
	}

	return w
}

// FreezeLeader queues the jobs and stops the leader as it asks for their first clone, before it has an answer,
// and has the webhooks go to the other one, as a Service does once a replica is not ready. It gives
// a function that has it go on, and waits until it has ended by itself: a leader that lost its
// lease must not go on.
func (w *World) FreezeLeader(jobs int) (thaw func()) {
	t := w.Fleet.T

	var once sync.Once

	frozen := make(chan struct{})
	t.Cleanup(w.Fleet.PVE.OnCall(func(call pve.Call) {
		if path.Base(call.Path) == "clone" {
			once.Do(func() {
				w.Operators.freeze()
				w.Fleet.Front.Serve(w.trap.webhooks(w.Standby.front))
				close(frozen)
			})
		}
	}))

	w.Queue(jobs)

	select {
	case <-frozen:
	case <-time.After(patience):
		t.Fatal("nothing was cloned")
	}

	return func() {
		w.Operators.thaw()

		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()

		if err := w.Operators.ended(ctx); err != nil {
			t.Errorf("the leader that lost its lease went on: %v", err)
		}
	}
}
