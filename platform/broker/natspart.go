// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// natsTakeover is for how long at most a part that was taken over waits for what its last
	// holder gave back; a holder that is gone gives nothing back. natsGlance is how often it
	// looks.
	natsTakeover = 2 * time.Second
	natsGlance   = 5 * time.Millisecond
)

// natsPart is one part of a subscription's keys.
type natsPart struct {
	stream, subject, name string
	into                  sink
	running               jetstream.ConsumeContext

	mu  sync.Mutex
	pin string
	// takingOver says that messages are put aside until those of the last holder are there.
	takingOver bool
	aside      []jetstream.Msg
}

// take hands a message on. JetStream gives back what a holder gave back in no order: it moves
// what nobody asks for to the end of its line (nats-server, consumer.go, loopAndGatherMsgs).
// So whoever has just been pinned waits until it has all that is out, and sorts it.
func (c *natsConsumer) take(p *natsPart, m jetstream.Msg) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if pin := m.Headers().Get("Nats-Pin-Id"); pin != "" && pin != p.pin {
		p.pin = pin

		p.takingOver = p.takingOver || c.spawn(func() { c.takeOver(p) })
	}

	if p.takingOver {
		p.aside = append(p.aside, m)

		return
	}

	p.into(natsDelivery{m})
}

// takeOver hands on what was put aside, once it is whole or there was time enough.
func (c *natsConsumer) takeOver(p *natsPart) {
	const share = 4 // what is put aside must not be waited for in vain by the server

	ctx, cancel := context.WithTimeout(c.running, min(natsTakeover, c.over.ackWait/share))
	defer cancel()

	for pause := natsGlance; ctx.Err() == nil && !c.whole(ctx, p); pause *= 2 {
		_ = retry.Pause(ctx, clock.RealClock{}, pause)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	slices.SortStableFunc(p.aside, func(a, b jetstream.Msg) int { return cmp.Compare(streamSequence(a), streamSequence(b)) })

	for _, m := range p.aside {
		p.into(natsDelivery{m})
	}

	p.takingOver, p.aside = false, nil
}

// whole says whether all that is out and not acked was put aside.
func (c *natsConsumer) whole(ctx context.Context, p *natsPart) bool {
	info, err := c.over.look(ctx, p)
	if err != nil {
		return false
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	// What was handed out after the server looked says nothing of what was out then.
	there := map[uint64]bool{}

	for _, m := range p.aside {
		if meta, err := m.Metadata(); err == nil && meta.Sequence.Consumer <= info.Delivered.Consumer {
			there[meta.Sequence.Stream] = true
		}
	}

	return len(there) >= info.NumAckPending
}

func streamSequence(m jetstream.Msg) uint64 {
	meta, err := m.Metadata()
	if err != nil {
		return 0
	}

	return meta.Sequence.Stream
}

// ended says that messages are not taken any more.
func (p *natsPart) ended() bool {
	select {
	case <-p.running.Closed():
		return true
	default:
		return false
	}
}

// look asks the server for the part's consumer. The one that takes messages is for a single
// goroutine to ask (jetstream.Consumer's Info writes what it was told without a lock).
func (o *overNATS) look(ctx context.Context, p *natsPart) (*jetstream.ConsumerInfo, error) {
	consumer, err := o.js.Consumer(ctx, p.stream, p.name)
	if err != nil {
		return nil, fmt.Errorf("look at consumer %s of NATS: %w", p.name, err)
	}

	return consumer.CachedInfo(), nil
}

// unpin gives the part up, if it is still this process's.
func (p *natsPart) unpin(ctx context.Context, over *overNATS) {
	p.mu.Lock()
	pin := p.pin
	p.mu.Unlock()

	if pin == "" || ctx.Err() != nil {
		return
	}

	info, err := over.look(ctx, p)
	if err != nil {
		return
	}

	for _, group := range info.PriorityGroups {
		if group.PinnedClientID != pin {
			continue
		}

		stream, err := over.js.Stream(ctx, p.stream)
		if err != nil {
			return
		}

		if err := stream.UnpinConsumer(ctx, p.name, natsGroup); err != nil {
			over.log.Debug("unpin consumer of NATS: another process takes over later", "consumer", p.name, "error", err)
		}
	}
}
