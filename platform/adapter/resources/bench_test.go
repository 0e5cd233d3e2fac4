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

// BenchmarkNoChange plays events that change nothing through the whole adapter, from the
// queue to the end: the resource is read from an API that answers at once, the object
// from the watch of a real cluster, and the status is reported. It prints events a second,
// and which share of the queue's own pace that is.
func BenchmarkNoChange(b *testing.B) {
	const many = 100

	w := newWhole(b, env.Namespace(b), http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
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

		if result := w.handle(b.Context(), reconcile(ids[i], 1)); result.Failure != nil {
			b.Fatal(result.Failure)
		}
	}

	// The watch catches up, and the second event finds everything there.
	for end := time.Now().Add(patience); ; {
		result := w.handle(b.Context(), reconcile(ids[many-1], 1))
		if result.Failure == nil && result.Resources.Outcomes[0].Operation == "none" || time.Now().After(end) {
			break
		}
	}

	b.Run("queue", func(b *testing.B) { pace(b, ids, func(context.Context, cloudevents.Event) error { return nil }) })

	alone := play(b, ids, 1000, func(context.Context, cloudevents.Event) error { return nil })

	b.Run("adapter", func(b *testing.B) {
		all := pace(b, ids, func(ctx context.Context, event cloudevents.Event) error {
			result := w.handle(ctx, event)
			if result.Status != pipeline.Success || len(result.Resources.Outcomes) != 1 || result.Resources.Outcomes[0].Operation != "none" {
				b.Errorf("%s %v", result.Status, result.Failure)
			}

			return result.Err
		})
		b.ReportMetric(all/alone, "of-queue")
	})
}

func pace(b *testing.B, ids []string, handle broker.Handler) float64 {
	b.Helper()

	perSecond := play(b, ids, b.N, handle)
	b.ReportMetric(perSecond, "events/s")

	return perSecond
}

// play puts n events in line and waits until each was handled.
func play(b *testing.B, ids []string, n int, handle broker.Handler) float64 {
	b.Helper()

	through := newSource(b, platform.Broker{Parallelism: 8})
	ctx, cancel := context.WithCancel(b.Context())

	var subscription, left sync.WaitGroup

	hears := make(chan struct{})

	subscription.Go(func() {
		through.Run(ctx, func(ctx context.Context, event cloudevents.Event) error {
			if event.ID() == "ping" {
				close(hears)

				return nil
			}
			defer left.Done()

			return handle(ctx, event)
		})
	})

	ping := numbered("ping", 0)
	ping.SetID("ping")
	through.add(ping)
	<-hears

	left.Add(n)
	b.ResetTimer()

	begin := time.Now()

	for i := range n {
		through.add(numbered(ids[i%len(ids)], i))
	}

	left.Wait()

	took := time.Since(begin)

	b.StopTimer()
	cancel()
	subscription.Wait()

	return float64(n) / took.Seconds()
}

// numbered events are all different, so that none is folded.
func numbered(id string, n int) cloudevents.Event {
	out := reconcile(id, 1)
	data, _ := json.Marshal(map[string]any{"id": id, "kind": "Cluster", "generation": 1, "n": n})
	_ = out.SetData("application/json", json.RawMessage(data))

	return out
}
