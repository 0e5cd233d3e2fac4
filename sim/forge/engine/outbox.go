// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"
	"time"
)

const (
	// Idle is how long nothing is due when nothing is known to be.
	Idle = time.Hour
	// lateBy bounds how late a reordered or duplicated webhook is.
	lateBy = 3 * time.Second
	// parallel is how many webhooks are under way at a time.
	parallel = 8
	// maxAnswer bounds what is read of a receiver's answer.
	maxAnswer = 4 << 10
)

// Webhook is one that is on its way. What is the platform's.
type Webhook[T any] struct {
	// Job is whose news it is: webhooks of one job are sent one after the other.
	Job string
	// Free ones keep no order: those that a fault has made late, and deliveries that a person
	// asked for again.
	Free      bool
	NotBefore time.Time
	What      T
}

// Outbox holds the webhooks that are to be sent. Platforms promise no order; simulators keep
// it between the webhooks of one job, unless a fault says otherwise. Its methods are called
// with the Core's Mu held.
type Outbox[T any] struct {
	core    *Core
	deliver func(*Webhook[T])
	items   []*Webhook[T]
	sending int
	flying  map[string]bool // jobs that a webhook is under way for
	mail    chan struct{}
}

// NewOutbox starts to send. deliver makes one attempt; it is called without Mu, takes it to
// note what came of it, and may have it sent Again.
func NewOutbox[T any](core *Core, deliver func(*Webhook[T])) *Outbox[T] {
	o := &Outbox[T]{core: core, deliver: deliver, flying: map[string]bool{}, mail: make(chan struct{}, 1)}
	slots := make(chan struct{}, parallel)
	core.wg.Go(func() { core.loop(o.mail, func() time.Duration { return o.sendDue(slots) }) })
	return o
}

// Lost says whether a fault loses the next webhook, and counts it.
func (c *Core) Lost() bool {
	lost := c.Chance(c.faults.WebhookLost)
	if lost {
		c.Counts.Lost++
	}
	return lost
}

// Post queues a webhook with faults applied: it may come late, and twice.
func (o *Outbox[T]) Post(w Webhook[T]) {
	w.NotBefore = o.core.Now()
	if o.core.Chance(o.core.faults.WebhookReordered) {
		o.delay(&w)
	}
	o.Queue(&w)
	if o.core.Chance(o.core.faults.WebhookDuplicated) {
		o.core.Counts.Duplicated++
		again := w
		o.delay(&again)
		o.Queue(&again)
	}
}

func (o *Outbox[T]) delay(w *Webhook[T]) {
	w.NotBefore, w.Free = o.core.Now().Add(time.Duration(o.core.Rand.Int64N(int64(lateBy)))), true
}

// Queue has a webhook sent after the earlier ones of its job.
func (o *Outbox[T]) Queue(w *Webhook[T]) {
	o.items = append(o.items, w)
	Poke(o.mail)
}

// Again has deliver's webhook sent once more, before the later ones of its job.
func (o *Outbox[T]) Again(w *Webhook[T]) {
	at := slices.IndexFunc(o.items, func(other *Webhook[T]) bool { return other.Job == w.Job && !other.Free })
	if at < 0 {
		at = len(o.items)
	}
	o.items = slices.Insert(o.items, at, w)
	Poke(o.mail)
}

// Pending is how many are queued or under way.
func (o *Outbox[T]) Pending() int { return len(o.items) + o.sending }

// Clear forgets what is queued.
func (o *Outbox[T]) Clear() { o.items = nil }

// sendDue sends what is due, and says for how long nothing else will be.
func (o *Outbox[T]) sendDue(slots chan struct{}) time.Duration {
	for o.core.ctx.Err() == nil {
		w, wait := o.next()
		if w == nil {
			return wait
		}
		slots <- struct{}{}
		o.core.wg.Go(func() {
			defer func() { <-slots }()
			o.deliver(w)
			o.core.Mu.Lock()
			defer o.core.Mu.Unlock()
			o.sending--
			if !w.Free {
				delete(o.flying, w.Job)
			}
			Poke(o.mail)
		})
	}
	return Idle
}

// next takes the first webhook that is due and that no other of its job is before, or says
// how long to wait.
func (o *Outbox[T]) next() (*Webhook[T], time.Duration) {
	o.core.Mu.Lock()
	defer o.core.Mu.Unlock()
	now, wait, before := o.core.Now(), Idle, map[string]bool{}
	for i, w := range o.items {
		held := !w.Free && (before[w.Job] || o.flying[w.Job])
		if !w.Free {
			before[w.Job] = true
		}
		if due := w.NotBefore.Sub(now); due > 0 {
			wait = min(wait, due)
			continue
		}
		if held {
			continue
		}
		o.items = slices.Delete(o.items, i, i+1)
		o.sending++
		if !w.Free {
			o.flying[w.Job] = true
		}
		return w, 0
	}
	return nil, wait
}

// Answer is what became of one attempt. Code is 0 when there was no answer.
type Answer struct {
	Code         int
	Sent, Header http.Header
	Text         string
	Took         time.Duration
	Err          error
}

// Send posts a webhook once, with the headers that sign gives it. Mu is not held.
func (c *Core) Send(url string, body []byte, sign func(http.Header)) Answer {
	ctx, cancel := context.WithTimeout(c.ctx, c.client.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Answer{Err: err}
	}
	sign(req.Header)
	out, began := Answer{Sent: req.Header}, c.Now()
	resp, err := c.client.Do(req)
	out.Took = c.Now().Sub(began)
	if err != nil {
		out.Err = err
		return out
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	out.Code, out.Header, out.Text = resp.StatusCode, resp.Header, string(text)
	return out
}
