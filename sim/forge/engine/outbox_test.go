// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// deliveryLog contains the delivered webhooks in order.
type deliveryLog struct {
	mu        sync.Mutex
	delivered []string
}

func (l *deliveryLog) add(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delivered = append(l.delivered, text)
}

func newCore(faults control.Faults) *engine.Core {
	return engine.New(engine.Config{
		Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler), Faults: faults, Check: control.Faults.Check,
		Seed: 1, HookTimeout: time.Second,
	})
}

// While a webhook is retried, the later webhooks of its job wait. Webhooks of other jobs do not wait.
func TestOrderOfWebhooksOfAJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, got, tries := newCore(control.Faults{}), deliveryLog{}, 0
		defer core.Close()
		var outbox *engine.Outbox[string]
		outbox = engine.NewOutbox(core, func(w *engine.Webhook[string]) {
			time.Sleep(time.Millisecond)
			core.Mu.Lock()
			defer core.Mu.Unlock()
			if w.Payload == "a1" && tries < 3 {
				tries++
				w.NotBefore = core.Now().Add(time.Minute)
				outbox.Requeue(w)
				return
			}
			got.add(w.Payload)
		})
		core.Mu.Lock()
		for _, what := range []string{"a1", "a2", "b1", "a3", "b2"} {
			outbox.Post(engine.Webhook[string]{Job: what[:1], Payload: what})
		}
		core.Mu.Unlock()
		time.Sleep(time.Hour)
		core.Mu.Lock()
		defer core.Mu.Unlock()
		if diff := cmp.Diff([]string{"b1", "b2", "a1", "a2", "a3"}, got.delivered); diff != "" || outbox.CountPending() != 0 {
			t.Errorf("%d pending; delivered, want -, got +:\n%s", outbox.CountPending(), diff)
		}
	})
}

// Faults delay and duplicate webhooks, and the counters match the deliveries.
func TestFaultsOfWebhooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		core, got := newCore(control.Faults{WebhookReordered: 0.5, WebhookDuplicated: 0.5, WebhookLost: 0.3}), deliveryLog{}
		defer core.Close()
		outbox := engine.NewOutbox(core, func(w *engine.Webhook[string]) { got.add(w.Payload) })
		const posted = 200
		core.Mu.Lock()
		for i := range posted {
			if !core.ShouldDrop() {
				outbox.Post(engine.Webhook[string]{Job: "a", Payload: fmt.Sprintf("%03d", i)})
			}
		}
		counts := core.Counts
		core.Mu.Unlock()
		time.Sleep(time.Minute)
		got.mu.Lock()
		defer got.mu.Unlock()
		if want := posted - counts.Lost + counts.Duplicated; len(got.delivered) != want {
			t.Errorf("%d were delivered, want %d: %+v", len(got.delivered), want, counts)
		}
		if counts.Lost == 0 || counts.Duplicated == 0 || slices.IsSorted(got.delivered) {
			t.Errorf("%d lost, %d double, in order: %v", counts.Lost, counts.Duplicated, slices.IsSorted(got.delivered))
		}
	})
}
