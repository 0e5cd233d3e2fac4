// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/test/must"
)

func TestMain(m *testing.M) {
	// The tests wait for brokers more than for a processor. The caller can set another number.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}

	os.Exit(m.Run())
}

const (
	waitTimeout = 2 * time.Minute
	warmUp      = "test.warmup"
	// pollInterval is the interval at which tests check for an expected result.
	pollInterval = 50 * time.Millisecond
	// quietPeriod is how long tests wait to see that nothing happens.
	quietPeriod = 300 * time.Millisecond
)

var errHandler = errors.New("not today")

// bus is what tests publish to and subscribe to: a broker, or local queues.
type bus interface {
	Publish(ctx context.Context, topic string, event cloudevents.Event) error
	PublishRaw(ctx context.Context, topic string, body []byte) error
	Subscribe(ctx context.Context, topic, id string, handle broker.Handler) error
	Folded(topic, id string) int
}

func newConfig() platform.Broker {
	return platform.Broker{Parallelism: 8, MaxDeliveries: 3, MinBackoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond}
}

// newEvent returns a test event. Its number gives its position among the events of its key.
func newEvent(t *testing.T, key string, number int) cloudevents.Event {
	t.Helper()

	e := cloudevents.NewEvent()
	e.SetID(uuid.NewString())
	e.SetSource(events.Source)
	e.SetType("io.hyperfleet.cluster.reconcile")
	e.SetExtension(events.PartitionKey, key)

	must.Do(t, e.SetData(events.ContentType, map[string]any{"id": key, "generation": number}))

	return e
}

func parseEvent(t *testing.T, e cloudevents.Event) (string, int) {
	t.Helper()

	var data events.Data
	if err := e.DataAs(&data); err != nil {
		t.Error(err)
	}

	return data.ID, int(data.Generation)
}

func publish(t *testing.T, b bus, topic string, e cloudevents.Event) {
	t.Helper()

	must.Do(t, b.Publish(t.Context(), topic, e))
}

// subscribe starts a subscription and waits until it is active. The returned function ends it.
func subscribe(t *testing.T, b bus, topic, id string, handle broker.Handler) (end func()) {
	t.Helper()

	warm := make(chan struct{})
	begun := sync.OnceFunc(func() { close(warm) })
	end = startSubscription(t, b, topic, id, func(ctx context.Context, e cloudevents.Event) error {
		if e.Type() == warmUp {
			begun()

			return nil
		}

		return handle(ctx, e)
	})

	deadline := time.After(waitTimeout)

	for i := 0; ; i++ {
		e := newEvent(t, "warm-up", i)
		e.SetType(warmUp)
		publish(t, b, topic, e)

		select {
		case <-warm:
			return end
		case <-time.After(100 * time.Millisecond):
		case <-deadline:
			t.Fatalf("subscription %s to %s does not start", id, topic)
		}
	}
}

func startSubscription(t *testing.T, b bus, topic, id string, handle broker.Handler) (end func()) {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)

	go func() { done <- b.Subscribe(ctx, topic, id, handle) }()

	end = sync.OnceFunc(func() {
		cancel()

		if err := <-done; err != nil {
			t.Errorf("Subscribe() = %v", err)
		}
	})
	t.Cleanup(end)

	return end
}

// recorder records the events that were handled.
type recorder struct {
	t  *testing.T
	mu sync.Mutex
	// numbers has the numbers by key in the order of handling.
	numbers map[string][]int
	// busy has the keys whose event is being handled, to detect two at the same time.
	busy map[string]bool
	most int
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()

	return &recorder{t: t, numbers: map[string][]int{}, busy: map[string]bool{}}
}

func (r *recorder) handle(_ context.Context, e cloudevents.Event) error {
	if e.Type() == warmUp {
		return nil
	}

	key, number := parseEvent(r.t, e)

	r.mu.Lock()
	if r.busy[key] {
		r.t.Errorf("two events of %s are handled at the same time", key)
	}

	r.busy[key] = true
	r.most = max(r.most, len(r.busy))
	r.mu.Unlock()

	time.Sleep(time.Millisecond)

	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.busy, key)
	r.numbers[key] = append(r.numbers[key], number)

	return nil
}

func (r *recorder) snapshot() map[string][]int {
	r.mu.Lock()
	defer r.mu.Unlock()

	out := map[string][]int{}
	for key, list := range r.numbers {
		out[key] = append([]int(nil), list...)
	}

	return out
}

func countEvents(list map[string][]int) int {
	sum := 0
	for _, item := range list {
		sum += len(item)
	}

	return sum
}

func newTopic(t *testing.T) string {
	t.Helper()

	return "t" + strings.ReplaceAll(uuid.NewString(), "-", "")
}

// localBus has queues of this process, one for each topic and subscription. When a queue gives up an event,
// the event goes to the queue of its dead letters in the form in which a broker publishes it.
type localBus struct {
	conf    platform.Broker
	metrics *broker.Metrics

	mu     sync.Mutex
	queues map[string]*broker.Queue
}

func newLocalBus(t *testing.T, conf platform.Broker) bus {
	t.Helper()

	metrics, err := broker.NewMetrics(nil)
	must.Do(t, err)

	return &localBus{conf: conf, metrics: metrics, queues: map[string]*broker.Queue{}}
}

func (l *localBus) queue(topic string) *broker.Queue {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.queues[topic] == nil {
		options := broker.QueueOptions{Conf: l.conf, Topic: topic, Subscription: "adapter", Metrics: l.metrics}

		if !strings.HasSuffix(topic, broker.DeadLetterSuffix) {
			options.GiveUp = func(given broker.Letter) error {
				body, err := given.Dead("adapter")
				if err == nil {
					l.queue(topic + broker.DeadLetterSuffix).AddRaw(body)
				}

				return err
			}
		}

		l.queues[topic] = broker.NewQueue(options)
	}

	return l.queues[topic]
}

func (l *localBus) Publish(ctx context.Context, topic string, event cloudevents.Event) error {
	return l.queue(topic).Publish(ctx, topic, event)
}

func (l *localBus) PublishRaw(_ context.Context, topic string, body []byte) error {
	l.queue(topic).AddRaw(body)

	return nil
}

func (l *localBus) Subscribe(ctx context.Context, topic, _ string, handle broker.Handler) error {
	l.queue(topic).Run(ctx, handle)

	return nil
}

func (l *localBus) Folded(topic, id string) int { return l.metrics.Folded(topic, id) }
