// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// message is a webhook's body.
type message struct {
	ID         string   `json:"id"`
	Source     string   `json:"source"`
	Name       string   `json:"name,omitempty"`
	State      string   `json:"state,omitempty"` // absent for queued
	Conclusion string   `json:"conclusion,omitempty"`
	Labels     []string `json:"labels,omitempty"`
	URL        string   `json:"url,omitempty"`
}

// delivery is one webhook on its way. It keeps its id over all attempts.
type delivery struct {
	id        string
	job       int64
	body      []byte
	notBefore time.Time
	attempts  int
	free      bool // keeps no order with other webhooks of its job
}

// notify queues the webhook of a change. The lock is held.
func (s *Server) notify(j *job) {
	if s.target.URL == "" {
		return
	}
	said := message{ID: j.Key, Source: j.Repo, Name: j.Name, Conclusion: j.Conclusion, Labels: j.Labels, URL: j.url}
	switch j.Status {
	case statusRunning:
		said.State = "running"
	case statusCompleted:
		said.State = "completed"
	}
	body, err := json.Marshal(said)
	if err != nil { // texts and lists of texts: it cannot be
		s.opts.Log.Error("write webhook", "error", err)
		return
	}
	s.ids.message++
	d := &delivery{id: "msg_" + strconv.FormatInt(s.ids.message, 10), job: j.ID, body: body, notBefore: s.now()}
	if s.chance(s.faults.WebhookReordered) {
		d.notBefore, d.free = s.now().Add(s.late()), true
	}
	s.outbox = append(s.outbox, d)
	if s.chance(s.faults.WebhookDuplicated) {
		s.counts.Duplicated++
		again := *d
		again.notBefore, again.free = s.now().Add(s.late()), true
		s.outbox = append(s.outbox, &again)
	}
	poke(s.mail)
}

// lateBy bounds how late a reordered or duplicated webhook is.
const lateBy = 3 * time.Second

func (s *Server) late() time.Duration { return time.Duration(s.rng.Int64N(int64(lateBy))) }

// parallelWebhooks is how many webhooks are under way at a time.
const parallelWebhooks = 8

// sendWebhooks delivers the outbox, several at a time, those of one job in their order.
func (s *Server) sendWebhooks() {
	slots := make(chan struct{}, parallelWebhooks)
	for s.ctx.Err() == nil {
		d, wait := s.nextDelivery()
		if d != nil {
			slots <- struct{}{}
			s.wg.Go(func() {
				defer func() { <-slots; poke(s.mail) }()
				s.deliver(d)
			})
			continue
		}
		timer := s.opts.Clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-s.mail:
		case <-s.ctx.Done():
		}
		timer.Stop()
	}
}

// nextDelivery takes the first delivery that is due and that no other of its job is
// before, or says how long to wait.
func (s *Server) nextDelivery() (*delivery, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, wait := s.now(), time.Hour
	before := map[int64]bool{}
	for i, d := range s.outbox {
		held := !d.free && (before[d.job] || s.flying[d.job])
		if !d.free {
			before[d.job] = true
		}
		if due := d.notBefore.Sub(now); due > 0 {
			wait = min(wait, due)
			continue
		}
		if held {
			continue
		}
		s.outbox = slices.Delete(s.outbox, i, i+1)
		s.sending++
		if !d.free {
			s.flying[d.job] = true
		}
		return d, 0
	}
	return nil, wait
}

// deliver makes one attempt; one that is not answered with 2xx is followed by another.
func (s *Server) deliver(d *delivery) {
	s.mu.Lock()
	target, lost := s.target, s.chance(s.faults.WebhookLost)
	s.mu.Unlock()
	result := outcome{}
	if !lost && target.URL != "" {
		result = s.attempt(d, target)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending--
	if !d.free {
		delete(s.flying, d.job)
	}
	d.attempts++
	switch {
	case target.URL == "":
		return
	case result.code/100 == 2:
		s.counts.Delivered++
		return
	case lost:
		s.counts.Lost++
	default:
		s.counts.Failed++
		s.opts.Log.Warn("a webhook was not taken", "id", d.id, "attempt", d.attempts, "status", result.code)
	}
	// Gone: the receiver wants no more (Standard Webhooks, "Deliverability").
	if result.code == http.StatusGone || d.attempts >= s.opts.Attempts || s.target.URL == "" {
		s.opts.Log.Error("a webhook was given up", "id", d.id, "attempts", d.attempts)
		return
	}
	d.notBefore = s.now().Add(max(s.backoff(d.attempts), result.after))
	s.outbox = slices.Insert(s.outbox, s.placeOf(d), d)
}

// placeOf is before all later webhooks of the job.
func (s *Server) placeOf(d *delivery) int {
	i := slices.IndexFunc(s.outbox, func(o *delivery) bool { return o.job == d.job && !o.free })
	if i < 0 {
		return len(s.outbox)
	}
	return i
}

// backoff doubles with each attempt, with up to a fifth on top so that many webhooks do
// not come at once.
func (s *Server) backoff(attempts int) time.Duration {
	wait := s.opts.RetryFirst
	for range attempts - 1 {
		if wait *= 2; wait >= s.opts.RetryMost {
			wait = s.opts.RetryMost
			break
		}
	}
	return wait + time.Duration(s.rng.Int64N(int64(wait/5)+1))
}

// outcome is the answer to an attempt; the zero value is none.
type outcome struct {
	code  int
	after time.Duration // Retry-After
}

func (s *Server) attempt(d *delivery, target control.WebhookTarget) outcome {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.HookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.URL, bytes.NewReader(d.body))
	if err != nil {
		return outcome{}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "forgesim-generic")
	s.sign(req.Header, d, target.Secret)
	resp, err := s.client.Do(req)
	if err != nil {
		return outcome{}
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxBody)
	out := outcome{code: resp.StatusCode}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		out.after = min(time.Duration(seconds)*time.Second, s.opts.RetryMost)
	}
	return out
}

// sign makes the headers anew for each attempt: receivers refuse old ones.
func (s *Server) sign(h http.Header, d *delivery, secret string) {
	if secret == "" {
		return
	}
	if s.opts.Sign == SignHub {
		h.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum([]byte(secret), d.body)))
		return
	}
	key, err := signingKey(secret)
	if err != nil {
		return // refused when it was set
	}
	stamp := strconv.FormatInt(s.now().Unix(), 10)
	h.Set("Webhook-Id", d.id)
	h.Set("Webhook-Timestamp", stamp)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(sum(key, []byte(d.id+"."+stamp+"."), d.body)))
}

func sum(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}
