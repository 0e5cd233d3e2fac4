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

	b, err := newBroker(platform.Broker{Parallelism: 2}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	var acked []int

	// handed is a delivery of event n of key a.
	handed := func(n int) delivery {
		return delivery{
			body: fmt.Appendf(nil, `{"specversion":"1.0","id":"e%d","source":"/test","type":"test","partitionkey":"a","data":{"n":%d}}`, n, n),
			ack: func() error {
				acked = append(acked, n)

				return nil
			},
			alive: func() bool { return true },
		}
	}

	begun, free, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	l := newLanes(b, "topic", "adapter", func(context.Context, cloudevents.Event) error {
		close(begun)
		<-free

		return nil
	})

	l.add(handed(1))
	<-begun
	l.add(handed(2))

	go func() {
		defer close(ended)

		l.end()
	}()

	for stopping := false; !stopping; {
		l.mu.Lock()
		stopping = l.stopping
		l.mu.Unlock()
	}

	l.add(handed(3))

	close(free)
	<-ended
	l.drop()

	if want := []int{1}; !slices.Equal(acked, want) {
		t.Errorf("acked %v, want %v", acked, want)
	}

	if held := testutil.ToFloat64(b.metrics.held.WithLabelValues("topic", "adapter")); held != 0 {
		t.Errorf("%v events are held at the end", held)
	}
}
