// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// slow takes its time to list claims, as it does where there are thousands, and counts.
type slow struct {
	client.Client

	clock *clocktesting.FakePassiveClock
	takes time.Duration
	lists int
}

func (c *slow) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.MachineClaimList); ok {
		c.lists++
		c.clock.SetTime(c.clock.Now().Add(c.takes))
	}

	return c.Client.List(ctx, list, opts...)
}

// Looks at a pool take a fifth of the time, however often its machines ask for one and however many
// they are; and none is left out.
func TestLooksAtAPoolAreKeptApart(t *testing.T) {
	t.Parallel()

	for takes, pause := range map[time.Duration]time.Duration{
		10 * time.Millisecond: 40 * time.Millisecond, time.Second: 500 * time.Millisecond, 0: 0,
	} {
		w := newPoolWorld(t, nil)
		read := &slow{Client: env.Client, clock: w.clock, takes: takes}
		w.pools.Client = read
		name := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: "pool"}}
		pass := func() time.Duration {
			result, err := w.pools.Reconcile(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}

			return result.RequeueAfter
		}

		pass()

		if pause == 0 {
			pass()

			if read.lists != 2 {
				t.Errorf("a look that took no time is followed by none: %d", read.lists)
			}

			continue
		}

		if after := pass(); after != pause || read.lists != 1 {
			t.Errorf("a look took %s: the next comes after %s, want %s; %d looks", takes, after, pause, read.lists)
		}

		w.clock.SetTime(w.clock.Now().Add(pause))

		pass()

		if read.lists != 2 {
			t.Errorf("after %s there were %d looks", pause, read.lists)
		}
	}
}
