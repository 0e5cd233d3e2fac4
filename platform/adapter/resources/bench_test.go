// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/broker"
)

// BenchmarkNoChange measures how many events that change nothing the whole adapter handles per second. The
// resource is read from an API that responds immediately, the object from a watch of a real cluster, and
// the status is reported. The benchmark also reports the rate as a share of the queue's own rate.
func BenchmarkNoChange(b *testing.B) {
	const many = 100

	w := newAdapterFixture(b, env.Namespace(b), http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)

		rw.Header().Set("Content-Type", "application/json")

		if r.Method == http.MethodPut {
			rw.WriteHeader(http.StatusCreated)
			fmt.Fprint(rw, `{}`)

			return
		}

		id := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		fmt.Fprintf(rw, `{"id":%q,"kind":"Cluster","name":"c","generation":1,"spec":{"tier":"gold"}}`, id)
	}))

	ids := make([]string, many)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7()).String()

		if result := w.handle(b.Context(), newReconcileEvent(ids[i], 1)); result.Failure != nil {
			b.Fatal(result.Failure)
		}
	}

	// Wait until the watch has the object, so that the second event changes nothing.
	for end := time.Now().Add(waitTimeout); ; {
		result := w.handle(b.Context(), newReconcileEvent(ids[many-1], 1))
		if result.Failure == nil && result.Resources.Outcomes[0].Operation == "none" || time.Now().After(end) {
			break
		}
	}

	b.Run("queue", func(b *testing.B) {
		measureQueueRate(b, ids, func(context.Context, cloudevents.Event) error { return nil })
	})

	alone := handleAll(b, ids, 1000, func(context.Context, cloudevents.Event) error { return nil })

	b.Run("adapter", func(b *testing.B) {
		all := measureQueueRate(b, ids, func(ctx context.Context, event cloudevents.Event) error {
			result := w.handle(ctx, event)
			if result.Status != pipeline.Success || len(result.Resources.Outcomes) != 1 || result.Resources.Outcomes[0].Operation != "none" {
				b.Errorf("%s %v", result.Status, result.Failure)
			}

			return result.Err
		})
		b.ReportMetric(all/alone, "of-queue")
	})
}

func measureQueueRate(b *testing.B, ids []string, handle broker.Handler) float64 {
	b.Helper()

	perSecond := handleAll(b, ids, b.N, handle)
	b.ReportMetric(perSecond, "events/s")

	return perSecond
}

// handleAll publishes n events and waits until all are handled.
func handleAll(b *testing.B, ids []string, n int, handle broker.Handler) float64 {
	b.Helper()

	through := newSource(b, platform.Broker{Parallelism: 8})
	ctx, cancel := context.WithCancel(b.Context())

	var subscription, left sync.WaitGroup

	received := make(chan struct{})

	subscription.Go(func() {
		through.Run(ctx, func(ctx context.Context, event cloudevents.Event) error {
			if event.ID() == "ping" {
				close(received)

				return nil
			}
			defer left.Done()

			return handle(ctx, event)
		})
	})

	ping := newNumberedEvent("ping", 0)
	ping.SetID("ping")
	through.publishEvent(ping)
	<-received

	left.Add(n)
	b.ResetTimer()

	begin := time.Now()

	for i := range n {
		through.publishEvent(newNumberedEvent(ids[i%len(ids)], i))
	}

	left.Wait()

	took := time.Since(begin)

	b.StopTimer()
	cancel()
	subscription.Wait()

	return float64(n) / took.Seconds()
}

// newNumberedEvent returns an event that differs from all others, so that none is folded.
func newNumberedEvent(id string, n int) cloudevents.Event {
	out := newReconcileEvent(id, 1)
	data, _ := json.Marshal(map[string]any{"id": id, "kind": "Cluster", "generation": 1, "n": n})
	_ = out.SetData("application/json", json.RawMessage(data))

	return out
}
