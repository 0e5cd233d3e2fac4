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
	// IdleDelay is the delay until the next run if nothing is due.
	IdleDelay = time.Hour
	// maxLateness is the maximum delay of a reordered or duplicated webhook.
	maxLateness = 3 * time.Second
	// maxParallel is the maximum number of deliveries at the same time.
	maxParallel = 8
	// maxResponse is the maximum number of bytes that Send reads of a receiver's response.
	maxResponse = 4 << 10
)

// Webhook is a webhook that is to be sent. Payload holds the data of the platform.
type Webhook[T any] struct {
	// Job identifies the job that the webhook is about. The webhooks of one job are sent one after
	// the other.
	Job string
	// Unordered webhooks are sent without regard to the order of their job's webhooks. These are
	// webhooks that a fault has delayed, and redeliveries that a person has requested.
	Unordered bool
	NotBefore time.Time
	Payload   T
}

// Outbox holds the webhooks that are to be sent. The platforms guarantee no order. The simulators
// keep the order of the webhooks of one job, unless a fault changes the order. Call the methods
// with the Core's Mu held.
type Outbox[T any] struct {
	core     *Core
	deliver  func(*Webhook[T])
	items    []*Webhook[T]
	sending  int
	inFlight map[string]bool // jobs with a delivery in progress
	wake     chan struct{}
}

// NewOutbox returns an Outbox and starts to send its webhooks. deliver makes one attempt. The
// outbox calls deliver without Mu. deliver takes Mu to record the result, and may call Requeue for
// another attempt.
func NewOutbox[T any](core *Core, deliver func(*Webhook[T])) *Outbox[T] {
	o := &Outbox[T]{core: core, deliver: deliver, inFlight: map[string]bool{}, wake: make(chan struct{}, 1)}
	slots := make(chan struct{}, maxParallel)
	core.wg.Go(func() { core.runLoop(o.wake, func() time.Duration { return o.sendDue(slots) }) })
	return o
}

// ShouldDrop reports whether a fault drops the next webhook, and counts a dropped webhook.
func (c *Core) ShouldDrop() bool {
	isLost := c.Occurs(c.faults.WebhookLost)
	if isLost {
		c.Counts.Lost++
	}
	return isLost
}

// Post queues a webhook and applies faults: a fault may delay the webhook or send it twice.
func (o *Outbox[T]) Post(w Webhook[T]) {
	w.NotBefore = o.core.Now()
	if o.core.Occurs(o.core.faults.WebhookReordered) {
		o.delay(&w)
	}
	o.Queue(&w)
	if o.core.Occurs(o.core.faults.WebhookDuplicated) {
		o.core.Counts.Duplicated++
		duplicate := w
		o.delay(&duplicate)
		o.Queue(&duplicate)
	}
}

func (o *Outbox[T]) delay(w *Webhook[T]) {
	w.NotBefore, w.Unordered = o.core.Now().Add(time.Duration(o.core.Rand.Int64N(int64(maxLateness)))), true
}

// Queue adds a webhook after the earlier webhooks of its job.
func (o *Outbox[T]) Queue(w *Webhook[T]) {
	o.items = append(o.items, w)
	Wake(o.wake)
}

// Requeue queues a webhook of deliver again, before the later webhooks of its job.
func (o *Outbox[T]) Requeue(w *Webhook[T]) {
	index := slices.IndexFunc(o.items, func(other *Webhook[T]) bool { return other.Job == w.Job && !other.Unordered })
	if index < 0 {
		index = len(o.items)
	}
	o.items = slices.Insert(o.items, index, w)
	Wake(o.wake)
}

// CountPending returns the number of webhooks that are queued or being delivered.
func (o *Outbox[T]) CountPending() int { return len(o.items) + o.sending }

// Clear deletes the queued webhooks.
func (o *Outbox[T]) Clear() { o.items = nil }

// sendDue sends the webhooks that are due, and returns the delay until another webhook is due.
func (o *Outbox[T]) sendDue(slots chan struct{}) time.Duration {
	for o.core.ctx.Err() == nil {
		w, wait := o.takeNext()
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
			if !w.Unordered {
				delete(o.inFlight, w.Job)
			}
			Wake(o.wake)
		})
	}
	return IdleDelay
}

// takeNext removes and returns the first webhook that is due and has no earlier webhook of its job
// before it. If there is no such webhook, takeNext returns nil and the time to wait.
func (o *Outbox[T]) takeNext() (*Webhook[T], time.Duration) {
	o.core.Mu.Lock()
	defer o.core.Mu.Unlock()
	now, wait, queued := o.core.Now(), IdleDelay, map[string]bool{}
	for i, w := range o.items {
		isBlocked := !w.Unordered && (queued[w.Job] || o.inFlight[w.Job])
		if !w.Unordered {
			queued[w.Job] = true
		}
		if delay := w.NotBefore.Sub(now); delay > 0 {
			wait = min(wait, delay)
			continue
		}
		if isBlocked {
			continue
		}
		o.items = slices.Delete(o.items, i, i+1)
		o.sending++
		if !w.Unordered {
			o.inFlight[w.Job] = true
		}
		return w, 0
	}
	return nil, wait
}

// Response is the result of one attempt. Code is 0 if the receiver did not respond.
type Response struct {
	Code                  int
	RequestHeader, Header http.Header
	Text                  string
	Duration              time.Duration
	Err                   error
}

// Send posts a webhook once, with the headers that sign sets. The caller must not hold Mu.
func (c *Core) Send(url string, body []byte, sign func(http.Header)) Response {
	ctx, cancel := context.WithTimeout(c.ctx, c.client.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Response{Err: err}
	}
	sign(req.Header)
	out, start := Response{RequestHeader: req.Header}, c.Now()
	resp, err := c.client.Do(req)
	out.Duration = c.Now().Sub(start)
	if err != nil {
		out.Err = err
		return out
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	out.Code, out.Header, out.Text = resp.StatusCode, resp.Header, string(text)
	return out
}
