// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"context"
	"testing"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
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

// FreezeLeader stops the leader in the midst of whatever it does when the machine is being made,
// and has the webhooks go to the other one, as a Service does once a replica is not ready. It gives
// a function that has it go on, and waits until it has ended by itself: a leader that lost its
// lease must not go on.
func (w *World) FreezeLeader() (thaw func()) {
	t := w.Fleet.T

	w.Fleet.Eventually("a clone being asked for", func() (bool, string) {
		return w.trap.has("clone"), "nothing was cloned"
	})
	w.Fleet.Front.Serve(w.trap.webhooks(w.Standby.front))
	w.Operators.freeze()

	return func() {
		w.Operators.thaw()

		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()

		if err := w.Operators.ended(ctx); err != nil {
			t.Errorf("the leader that lost its lease went on: %v", err)
		}
	}
}
