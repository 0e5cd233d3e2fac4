// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

// told is what deliveries were told, in order.
type told struct {
	mu    sync.Mutex
	words []string
}

func (o *told) note(word, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.words = append(o.words, word+" "+id)
}

func (o *told) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()

	out := o.words
	o.words = nil

	return out
}

// handed is a delivery of event n of key a, for the nth time.
type handed struct {
	told     *told
	n, times int
}

func (d handed) body() []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":"e%d","source":"/test","type":"test","partitionkey":"a","data":{"n":%d}}`, d.n, d.n)
}
func (d handed) tries() int  { return d.times - 1 }
func (d handed) release()    { d.told.note("release", d.name()) }
func (d handed) alive() bool { return true }

func (d handed) ack() error {
	d.told.note("ack", d.name())

	return nil
}

func (d handed) name() string { return strings.Repeat("again ", d.times-1) + strconv.Itoa(d.n) }

// TestWhatComesAtTheEnd: what is delivered while the last event is in work is kept alive, told
// from what is delivered again, and given back in its order.
func TestWhatComesAtTheEnd(t *testing.T) {
	t.Parallel()

	c, err := newCore(platform.Broker{Parallelism: 2}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}

	var seen told

	begun, free, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	l := newLanes(c, "topic", "adapter", func(context.Context, cloudevents.Event) error {
		close(begun)
		<-free

		return nil
	})

	l.add(handed{&seen, 1, 1})
	<-begun
	l.add(handed{&seen, 2, 1})

	go func() {
		defer close(ended)

		l.end()
	}()

	for stopping := false; !stopping; {
		l.mu.Lock()
		stopping = l.stopping
		l.mu.Unlock()
	}

	l.add(handed{&seen, 3, 1})

	close(free)
	<-ended
	l.giveBack()

	if got, want := seen.take(), []string{"ack 1", "release 2", "release 3"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}
