// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

const (
	natsDialTimeout = 5 * time.Second
	defaultAckWait  = 30 * time.Second
	// natsPinned is after what silence another process takes over a part of the keys.
	// A living one asks for messages natsPulls times as often.
	natsPinned = 12 * time.Second
	natsPulls  = 3
	natsBatch  = 256
	// natsLook is how often parts that met an error are looked at.
	natsLook = 2 * time.Second
	// maxPending is how many events of a part of the keys are handed out and not done.
	maxPending = 1000
	natsGroup  = "replicas"

	// eventsKept and deadKept are for how long a broker keeps what nobody takes.
	// Sentinel sends anew what is older.
	eventsKept = 24 * time.Hour
	deadKept   = 7 * 24 * time.Hour
	// subscriptionKept is for how long a subscription lives on that nobody uses.
	subscriptionKept = 7 * 24 * time.Hour
)

// overNATS is a transport over NATS JetStream: two streams, one of events, one of dead
// letters; a subject for each topic and part of the keys; a durable consumer for each
// subscription, topic and part, pinned to one process at a time (JetStream's priority
// policy pinned_client, of server 2.11 and later).
type overNATS struct {
	access   access
	conn     *nats.Conn
	js       jetstream.JetStream
	stream   string
	ackWait  time.Duration
	pinned   time.Duration
	log      *slog.Logger
	troubles *troubles

	mu sync.Mutex
	// pool is the address that the connection has its servers from.
	pool string
}

func dialNATS(ctx context.Context, conf platform.BrokerNATSConf, at pace, log *slog.Logger) (*overNATS, error) {
	if conf.Stream == "" {
		conf.Stream = defaultName
	}

	if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString(conf.Stream) {
		return nil, fmt.Errorf("broker.nats.stream: %q: write letters, digits, '-' and '_'", conf.Stream)
	}

	if conf.AckWait <= 0 {
		conf.AckWait = defaultAckWait
	}

	o := &overNATS{
		access: natsAccess(conf), stream: conf.Stream, ackWait: conf.AckWait, pinned: at.pinned, log: log,
		troubles: newTroubles(clock.RealClock{}),
	}
	if err := o.connect(conf); err != nil {
		return nil, err
	}

	if err := o.ensureStreams(ctx); err != nil {
		o.conn.Close()

		return nil, err
	}

	return o, nil
}

// ensureStreams makes the streams that are not there. One that is there is taken as it
// is, so that who runs NATS may decide on replicas and limits.
func (o *overNATS) ensureStreams(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, natsDialTimeout)
	defer cancel()

	for _, want := range []jetstream.StreamConfig{
		{Name: o.stream, Subjects: []string{o.stream + ".events.>"}, MaxAge: eventsKept},
		{Name: o.stream + "-dead-letters", Subjects: []string{o.stream + ".dead-letters.>"}, MaxAge: deadKept},
	} {
		_, err := o.js.Stream(ctx, want.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			want.Storage = jetstream.FileStorage
			_, err = o.js.CreateStream(ctx, want)
		}

		// Another process may have made it in between.
		if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return fmt.Errorf("make stream %s of NATS: %w", want.Name, o.explain(err))
		}
	}

	return nil
}

// place is where a topic's messages of a part are.
func (o *overNATS) place(topic string, part int) (stream, subject string) {
	if name, dead := strings.CutSuffix(topic, DeadLetterSuffix); dead {
		return o.stream + "-dead-letters", o.stream + ".dead-letters." + name + "." + strconv.Itoa(part)
	}

	return o.stream, o.stream + ".events." + topic + "." + strconv.Itoa(part)
}

func (o *overNATS) publish(ctx context.Context, topic string, m message) error {
	stream, subject := o.place(topic, partition(m.key))

	out := nats.NewMsg(subject)
	out.Data = m.body
	out.Header.Set("Content-Type", "application/cloudevents+json")

	for name, value := range m.header {
		out.Header.Set(name, value)
	}

	// The id has the server tell a second try from a second event.
	_, err := o.js.PublishMsg(ctx, out, jetstream.WithMsgID(m.id), jetstream.WithExpectStream(stream))
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		// A server that came back without its disk has no streams; the next try finds them.
		err = errors.Join(err, o.ensureStreams(ctx))
	}

	return o.explain(err)
}

func (o *overNATS) consume(ctx context.Context, topic, subscription string, into sink) (consumer, error) {
	keeping, end := context.WithCancel(context.Background())
	c := &natsConsumer{over: o, suspects: map[*natsPart]bool{}, running: keeping, end: end}
	// Dots are no part of a consumer's name, and ~ and + are no part of ours.
	name := strings.ReplaceAll(subscription+"+"+topic, ".", "~")

	for part := range partitionCount {
		p := &natsPart{name: name + "+" + strconv.Itoa(part), into: into}
		p.stream, p.subject = o.place(topic, part)

		if err := c.begin(ctx, p); err != nil {
			c.quiet()

			return nil, err
		}

		c.parts = append(c.parts, p)
	}

	c.spawn(func() { c.keep(keeping) })

	return c, nil
}

func (o *overNATS) keepAlive() time.Duration {
	const often = 3

	return o.ackWait / often
}

func (o *overNATS) health(ctx context.Context) error {
	if !o.conn.IsConnected() {
		why := o.troubles.err()
		if why == nil {
			why = o.access.explain(o.conn.LastError())
		}

		if why != nil {
			return fmt.Errorf("no connection to NATS: %w", why)
		}

		return fmt.Errorf("no connection to NATS: %s", strings.ToLower(o.conn.Status().String()))
	}

	if _, err := o.js.Stream(ctx, o.stream); err != nil {
		return fmt.Errorf("look at stream %s of NATS: %w", o.stream, o.explain(err))
	}

	return o.troubles.err()
}

func (o *overNATS) close() { o.conn.Close() }

// natsConsumer is a subscription in this process.
type natsConsumer struct {
	over  *overNATS
	parts []*natsPart

	// One goroutine looks at suspects, and fixes parts. Others wait for what a part took over.
	// They have ended when running has.
	keeping sync.WaitGroup
	running context.Context //nolint:containedctx // the subscription's life
	end     context.CancelFunc

	mu sync.Mutex
	// suspects are parts that met an error.
	suspects map[*natsPart]bool
}

// begin makes the part's consumer, if it is not there, and takes its messages.
func (c *natsConsumer) begin(ctx context.Context, p *natsPart) error {
	ctx, cancel := context.WithTimeout(ctx, natsDialTimeout)
	defer cancel()

	from, err := c.over.js.CreateOrUpdateConsumer(ctx, p.stream, jetstream.ConsumerConfig{
		Durable: p.name, FilterSubject: p.subject, DeliverPolicy: jetstream.DeliverNewPolicy,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: c.over.ackWait, MaxDeliver: -1, MaxAckPending: maxPending,
		InactiveThreshold: subscriptionKept,
		PriorityPolicy:    jetstream.PriorityPolicyPinned, PinnedTTL: c.over.pinned, PriorityGroups: []string{natsGroup},
	})
	if err != nil {
		return fmt.Errorf("make consumer %s of NATS (server 2.11 or later): %w", p.name, c.over.explain(err))
	}

	running, err := from.Consume(func(m jetstream.Msg) { c.take(p, m) },
		jetstream.PullMaxMessages(natsBatch), jetstream.PullExpiry(c.over.pinned/natsPulls), jetstream.PullPriorityGroup(natsGroup),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			// A server that restarts is told by the connection.
			c.over.log.Debug("consumer of NATS", "consumer", p.name, "error", err)
			c.suspect(p)
		}))
	if err != nil {
		return fmt.Errorf("consume %s of NATS: %w", p.name, err)
	}

	p.running = running

	return nil
}

// keep looks at parts that met an error until ctx ends. Those whose consumer is gone, be it
// deleted or lost with the server's disk, get a new one: else they would wait for ever.
func (c *natsConsumer) keep(ctx context.Context) {
	ticker := time.NewTicker(natsLook)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			for p := range c.takeSuspects() {
				if !c.fix(ctx, p) {
					c.suspect(p)
				}
			}
		}
	}
}

// suspect has the part looked at: a consumer tells of its end once.
func (c *natsConsumer) suspect(p *natsPart) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.suspects[p] = true
}

func (c *natsConsumer) takeSuspects() map[*natsPart]bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	taken := c.suspects
	c.suspects = map[*natsPart]bool{}

	return taken
}

// fix says whether the part is well, and makes it so if its consumer is gone.
func (c *natsConsumer) fix(parent context.Context, p *natsPart) bool {
	ctx, cancel := context.WithTimeout(parent, natsDialTimeout)
	defer cancel()

	_, err := c.over.look(ctx, p)

	switch {
	case err == nil && !p.ended():
		return true
	case err == nil, errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound):
	default:
		return false // the connection says why
	}

	p.running.Stop()

	if err = c.over.ensureStreams(ctx); err == nil {
		err = c.begin(ctx, p)
	}

	if err != nil {
		if parent.Err() == nil && c.over.troubles.note("consumer "+p.name, err) {
			c.over.log.Warn("a consumer of NATS is gone and can't be made again", "consumer", p.name, "error", err)
		}

		return false
	}

	c.over.troubles.over("consumer " + p.name)
	c.over.log.Warn("a consumer of NATS was gone and is made again: events of meanwhile come when their sender sends them anew",
		"consumer", p.name)

	return true
}

// spawn runs something that quiet waits for; false when it has begun to.
func (c *natsConsumer) spawn(do func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.running.Err() != nil {
		return false
	}

	c.keeping.Go(do)

	return true
}

func (c *natsConsumer) quiet() {
	c.mu.Lock()
	c.end()
	c.mu.Unlock()
	c.keeping.Wait()

	for _, p := range c.parts {
		p.running.Drain()
	}

	for _, p := range c.parts {
		<-p.running.Closed()
	}
}

// close lets the next process take over at once.
func (c *natsConsumer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), natsDialTimeout)
	defer cancel()

	// What was given back or acked is on its way before the parts are.
	_ = c.over.conn.FlushWithContext(ctx)

	for _, p := range c.parts {
		p.unpin(ctx, c.over)
	}
}

type natsDelivery struct{ m jetstream.Msg }

func (d natsDelivery) body() []byte { return d.m.Data() }

func (d natsDelivery) id() string {
	if meta, err := d.m.Metadata(); err == nil {
		return strconv.FormatUint(meta.Sequence.Stream, 10)
	}

	return ""
}

func (d natsDelivery) tries() int {
	if meta, err := d.m.Metadata(); err == nil && meta.NumDelivered > 0 {
		const most = 1 << 20

		return int(min(meta.NumDelivered-1, most)) //nolint:gosec // it is bounded
	}

	return 0
}

func (d natsDelivery) ack() error { return d.m.Ack() }

// A failure of these ends as silence does: the message is delivered again.
func (d natsDelivery) release()    { _ = d.m.Nak() }
func (d natsDelivery) extend()     { _ = d.m.InProgress() }
func (d natsDelivery) alive() bool { return true }
