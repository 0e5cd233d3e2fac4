// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"slices"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

// TestWhatComesAtTheEnd: what is delivered while the last event is in work is not begun, nor
// acked: the broker delivers it again.
func TestWhatComesAtTheEnd(t *testing.T) {
	t.Parallel()

	metrics, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}

	var acked []int

	q := NewQueue(QueueOptions{Conf: platform.Broker{Parallelism: 2}, Topic: "topic", Subscription: "adapter", Metrics: metrics})

	// deliver event n of key a.
	deliver := func(n int) {
		body := fmt.Appendf(nil, `{"specversion":"1.0","id":"e%d","source":"/test","type":"test","partitionkey":"a","data":{"n":%d}}`, n, n)
		q.take(body, 0, func() error {
			acked = append(acked, n)

			return nil
		}, func() bool { return true })
	}

	begun, free, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ctx, end := context.WithCancel(t.Context())

	go func() {
		defer close(ended)

		q.Run(ctx, func(context.Context, cloudevents.Event) error {
			close(begun)
			<-free

			return nil
		})
	}()

	deliver(1)
	<-begun
	deliver(2)
	end()

	for stopping := false; !stopping; {
		q.mu.Lock()
		stopping = q.stopping
		q.mu.Unlock()
	}

	deliver(3)

	close(free)
	<-ended
	// The same as what is in line: it is not folded into what will not be handled.
	deliver(2)

	if want := []int{1}; !slices.Equal(acked, want) {
		t.Errorf("acked %v, want %v", acked, want)
	}

	if held := testutil.ToFloat64(metrics.held.WithLabelValues("topic", "adapter")); held != 0 {
		t.Errorf("%v events are held at the end", held)
	}
}
