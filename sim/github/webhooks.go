// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// hook is a webhook and what was sent through it.
type hook struct {
	Hook

	deliveries []*delivery // oldest first
}

// delivery is one attempt to deliver one event.
type delivery struct {
	id         int64
	guid       string
	hook       *hook
	action     string
	install    int64
	repo       int64
	redelivery bool
	job        int64 // whose news it is; 0 for a redelivery
	lost       bool  // by a fault: recorded as failed, never sent
	notBefore  time.Time
	body       []byte

	at              time.Time
	took            time.Duration
	status          string
	code            int
	requestHeaders  http.Header
	responseHeaders http.Header
	response        string
}

// covers says whether events of the repository go to the hook.
func (h *hook) covers(s *Server, repo *repository) bool {
	switch {
	case h.Owner == "app":
		return s.installationOf(repo) != nil
	case strings.Contains(h.Owner, "/"):
		return strings.EqualFold(h.Owner, repo.fullName())
	}
	return strings.EqualFold(h.Owner, repo.owner.login)
}

// notify queues the webhooks of a change, with faults applied. The lock is held.
func (s *Server) notify(j *job, action string) {
	j.run.updated = s.now()
	for _, h := range s.hooks {
		if h.URL == "" || !h.covers(s, j.run.repo) {
			continue
		}
		body, err := json.Marshal(s.webhookJSON(h, j, action))
		if err == nil {
			err = s.spec.checkWebhook(action, body)
		}
		if err != nil {
			s.violateLocked("webhook", "POST", action, err)
		}
		d := &delivery{hook: h, guid: randomGUID(), action: action, repo: j.run.repo.id, job: j.id, body: body, notBefore: s.now()}
		if in := s.installationOf(j.run.repo); in != nil && h.Owner == "app" {
			d.install = in.ID
		}
		s.post(d)
	}
}

// lateBy bounds how late a reordered or duplicated webhook is.
const lateBy = 3 * time.Second

func (s *Server) post(d *delivery) {
	if s.chance(s.faults.WebhookLost) {
		s.counts.Lost++
		d.lost = true
	}
	if s.chance(s.faults.WebhookReordered) {
		d.notBefore = s.now().Add(s.late())
	}
	s.outbox = append(s.outbox, d)
	if !d.lost && s.chance(s.faults.WebhookDuplicated) {
		s.counts.Duplicated++
		again := *d
		again.notBefore = s.now().Add(s.late())
		s.outbox = append(s.outbox, &again)
	}
	poke(s.mail)
}

func (s *Server) late() time.Duration { return time.Duration(s.rng.Int64N(int64(lateBy))) }

// parallelWebhooks is how many webhooks are under way at a time.
const parallelWebhooks = 8

// sendWebhooks delivers the outbox, several at a time. GitHub promises no order; the
// simulator keeps it between the webhooks of one job, unless a fault says otherwise.
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
	for i, d := range s.outbox {
		if due := d.notBefore.Sub(now); due > 0 {
			wait = min(wait, due)
			continue
		}
		if d.job != 0 && s.flying[d.job] {
			continue
		}
		s.outbox = slices.Delete(s.outbox, i, i+1)
		s.ids.delivery++
		d.id, d.at = s.ids.delivery, now
		s.sending++
		s.flying[d.job] = true
		return d, 0
	}
	return nil, wait
}

// deliver makes one attempt and records it. There is no retry, as at GitHub.
func (s *Server) deliver(d *delivery) {
	s.mu.Lock()
	target, secret := d.hook.URL, d.hook.Secret
	s.mu.Unlock()
	if d.lost {
		d.status, d.code = "failed to connect to host", http.StatusBadGateway
	} else {
		s.attempt(d, target, secret)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending--
	delete(s.flying, d.job)
	switch {
	case d.lost:
	case d.code >= 200 && d.code < 300:
		s.counts.Delivered++
	default:
		s.counts.Failed++
	}
	// Deliveries overtake each other; the list is by id.
	at, _ := slices.BinarySearchFunc(d.hook.deliveries, d.id, func(old *delivery, id int64) int { return int(old.id - id) })
	d.hook.deliveries = slices.Insert(d.hook.deliveries, at, d)
	d.hook.deliveries = slices.DeleteFunc(d.hook.deliveries, func(old *delivery) bool {
		return s.now().Sub(old.at) > deliveryLife
	})
}

func (s *Server) attempt(d *delivery, target, secret string) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.HookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(d.body))
	if err != nil {
		d.status, d.code = "invalid HTTP Response: bad URL", http.StatusBadGateway
		return
	}
	hookHeaders(req.Header, d, secret)
	if s.opts.URL != "" {
		_, host, _ := strings.Cut(s.opts.URL, "://")
		req.Header.Set("X-Github-Enterprise-Host", host)
	}
	d.requestHeaders = req.Header
	began := s.now()
	resp, err := s.client.Do(req)
	d.took = s.now().Sub(began)
	if err != nil {
		d.status, d.code = "failed to connect to host", http.StatusBadGateway
		if errors.Is(err, context.DeadlineExceeded) {
			d.status, d.code = "timed out", http.StatusGatewayTimeout
		}
		return
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	d.code, d.status, d.response = resp.StatusCode, "OK", string(text)
	d.responseHeaders = resp.Header
	if resp.StatusCode >= 300 {
		d.status = "Invalid HTTP Response: " + strconv.Itoa(resp.StatusCode)
	}
}

// hookHeaders: docs "Webhook events and payloads", delivery headers.
func hookHeaders(h http.Header, d *delivery, secret string) {
	target, id := "organization", d.repo
	switch {
	case d.hook.Owner == "app":
		target, id = "integration", d.install
	case strings.Contains(d.hook.Owner, "/"):
		target = "repository"
	}
	h.Set("Accept", "*/*")
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "GitHub-Hookshot/"+d.guid[:7])
	h.Set("X-Github-Delivery", d.guid)
	h.Set("X-Github-Event", "workflow_job")
	h.Set("X-Github-Hook-Id", strconv.FormatInt(d.hook.ID, 10))
	h.Set("X-Github-Hook-Installation-Target-Id", strconv.FormatInt(id, 10))
	h.Set("X-Github-Hook-Installation-Target-Type", target)
	if secret != "" {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(d.body)
		h.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	}
}

// hookOf finds the hook a call is about.
func (s *Server) hookOf(c *call) *hook {
	for _, h := range s.hooks {
		id := strconv.FormatInt(h.ID, 10)
		switch {
		case c.scope.kind == scopeNone && h.Owner == "app",
			c.scope.kind != scopeNone && strings.EqualFold(h.Owner, c.scope.name) && id == c.params["hook_id"]:
			return h
		}
	}
	return nil
}

func (d *delivery) itemJSON() map[string]any {
	out := map[string]any{
		"id": d.id, "guid": d.guid, "delivered_at": stamp(d.at), "redelivery": d.redelivery,
		"duration": d.took.Seconds(), "status": d.status, "status_code": d.code, "event": "workflow_job",
		"action": d.action, "installation_id": nil, "repository_id": d.repo, "throttled_at": nil,
	}
	if d.install != 0 {
		out["installation_id"] = d.install
	}
	return out
}

// answerDeliveries lists newest first; a cursor is "v1_" and the id to go on from.
func (s *Server) answerDeliveries(c *call) reply {
	h := s.hookOf(c)
	if h == nil {
		return notFound()
	}
	query := c.r.URL.Query()
	size := min(intOr(query.Get("per_page"), 30), 100)
	before := int64(0)
	if cursor := query.Get("cursor"); cursor != "" {
		id, err := strconv.ParseInt(strings.TrimPrefix(cursor, "v1_"), 10, 64)
		if err != nil {
			return fail(http.StatusBadRequest, "Invalid cursor")
		}
		before = id
	}
	list, link := []map[string]any{}, ""
	for _, d := range slices.Backward(h.deliveries) {
		failed := d.code >= 400
		if (before != 0 && d.id > before) || (query.Get("status") == "failure") != failed && query.Get("status") != "" {
			continue
		}
		if len(list) == size {
			query.Set("cursor", "v1_"+strconv.FormatInt(d.id, 10))
			u := *c.r.URL
			u.RawQuery = query.Encode()
			link = fmt.Sprintf("<%s%s>; rel=\"next\"", c.host, u.RequestURI())
			break
		}
		list = append(list, d.itemJSON())
	}
	return reply{status: http.StatusOK, body: list, link: link}
}

func (s *Server) deliveryOf(c *call) *delivery {
	h := s.hookOf(c)
	if h == nil {
		return nil
	}
	for _, d := range h.deliveries {
		if strconv.FormatInt(d.id, 10) == c.params["delivery_id"] {
			return d
		}
	}
	return nil
}

func (s *Server) answerDelivery(c *call) reply {
	d := s.deliveryOf(c)
	if d == nil {
		return notFound()
	}
	out := d.itemJSON()
	out["url"] = d.hook.URL
	out["request"] = map[string]any{"headers": flat(d.requestHeaders), "payload": json.RawMessage(d.body)}
	out["response"] = map[string]any{"headers": flat(d.responseHeaders), "payload": d.response}
	return ok(out)
}

func flat(h http.Header) map[string]string {
	out := map[string]string{}
	for key := range h {
		out[key] = h.Get(key)
	}
	return out
}

// answerRedeliver sends the same event again under the same GUID.
func (s *Server) answerRedeliver(c *call) reply {
	d := s.deliveryOf(c)
	if d == nil {
		return notFound()
	}
	s.post(&delivery{
		hook: d.hook, guid: d.guid, action: d.action, install: d.install, repo: d.repo,
		redelivery: true, body: d.body, notBefore: s.now(),
	})
	return reply{status: http.StatusAccepted, body: map[string]any{}}
}
