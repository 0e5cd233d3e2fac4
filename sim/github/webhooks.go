// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
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
	lost       bool // by a fault: recorded as failed, never sent
	body       []byte

	at     time.Time
	status string
	answer engine.Answer
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
		d := delivery{hook: h, guid: engine.UUID(), action: action, repo: j.run.repo.id, body: body}
		if in := s.installationOf(j.run.repo); in != nil && h.Owner == "app" {
			d.install = in.ID
		}
		s.post(engine.Webhook[delivery]{Job: strconv.FormatInt(j.id, 10), What: d})
	}
}

// post queues a delivery. One that a fault loses is on the list of deliveries all the same.
func (s *Server) post(w engine.Webhook[delivery]) {
	if w.What.lost = s.core.Lost(); w.What.lost {
		s.outbox.Queue(&w)
		return
	}
	s.outbox.Post(w)
}

// deliver makes one attempt and records it. There is no retry, as at GitHub.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	d := &w.What
	s.core.Mu.Lock()
	s.ids.delivery++
	d.id, d.at = s.ids.delivery, s.now()
	target, secret := d.hook.URL, d.hook.Secret
	s.core.Mu.Unlock()
	if d.lost {
		d.status, d.answer.Code = "failed to connect to host", http.StatusBadGateway
	} else {
		s.attempt(d, target, secret)
	}
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	switch {
	case d.lost:
	case d.answer.Code >= 200 && d.answer.Code < 300:
		s.core.Counts.Delivered++
	default:
		s.core.Counts.Failed++
	}
	// Deliveries overtake each other; the list is by id.
	at, _ := slices.BinarySearchFunc(d.hook.deliveries, d.id, func(old *delivery, id int64) int { return int(old.id - id) })
	d.hook.deliveries = slices.Insert(d.hook.deliveries, at, d)
	d.hook.deliveries = slices.DeleteFunc(d.hook.deliveries, func(old *delivery) bool {
		return s.now().Sub(old.at) > deliveryLife
	})
}

func (s *Server) attempt(d *delivery, target, secret string) {
	d.answer = s.core.Send(target, d.body, func(h http.Header) {
		hookHeaders(h, d, secret)
		if s.opts.URL != "" {
			_, host, _ := strings.Cut(s.opts.URL, "://")
			h.Set("X-Github-Enterprise-Host", host)
		}
	})
	d.status = "OK"
	switch err := d.answer.Err; {
	case errors.Is(err, context.DeadlineExceeded):
		d.status, d.answer.Code = "timed out", http.StatusGatewayTimeout
	case err != nil && d.answer.Sent == nil:
		d.status, d.answer.Code = "invalid HTTP Response: bad URL", http.StatusBadGateway
	case err != nil:
		d.status, d.answer.Code = "failed to connect to host", http.StatusBadGateway
	case d.answer.Code >= 300:
		d.status = "Invalid HTTP Response: " + strconv.Itoa(d.answer.Code)
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
		"duration": d.answer.Took.Seconds(), "status": d.status, "status_code": d.answer.Code, "event": "workflow_job",
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
		failed := d.answer.Code >= 400
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
	out["request"] = map[string]any{"headers": flat(d.answer.Sent), "payload": json.RawMessage(d.body)}
	out["response"] = map[string]any{"headers": flat(d.answer.Header), "payload": d.answer.Text}
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
	again := delivery{hook: d.hook, guid: d.guid, action: d.action, install: d.install, repo: d.repo, redelivery: true, body: d.body}
	s.post(engine.Webhook[delivery]{Free: true, What: again})
	return reply{status: http.StatusAccepted, body: map[string]any{}}
}
