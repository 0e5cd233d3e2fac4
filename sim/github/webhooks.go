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

// hook is a webhook and its deliveries.
type hook struct {
	Hook

	deliveries []*delivery // oldest first
}

// delivery is one attempt to deliver one event.
type delivery struct {
	id             int64
	guid           string
	hook           *hook
	action         string
	installationID int64
	repoID         int64
	redelivery     bool
	lost           bool // by a fault: recorded as failed, never sent
	body           []byte

	sentAt   time.Time
	status   string
	response engine.Response
}

// covers reports whether the hook receives the events of the repository.
func (h *hook) covers(s *Server, repo *repository) bool {
	switch {
	case h.Owner == "app":
		return s.findInstallation(repo) != nil
	case strings.Contains(h.Owner, "/"):
		return strings.EqualFold(h.Owner, repo.fullName())
	}
	return strings.EqualFold(h.Owner, repo.owner.login)
}

// queueWebhooks queues the webhooks of a change and applies faults. The lock is held.
func (s *Server) queueWebhooks(j *job, action string) {
	j.run.updatedAt = s.now()
	for _, h := range s.hooks {
		if h.URL == "" || !h.covers(s, j.run.repo) {
			continue
		}
		body, err := json.Marshal(s.encodeWebhook(h, j, action))
		if err == nil {
			err = s.spec.checkWebhook(action, body)
		}
		if err != nil {
			s.addViolationLocked("webhook", "POST", action, err)
		}
		d := delivery{hook: h, guid: engine.NewUUID(), action: action, repoID: j.run.repo.id, body: body}
		if inst := s.findInstallation(j.run.repo); inst != nil && h.Owner == "app" {
			d.installationID = inst.ID
		}
		s.queueDelivery(engine.Webhook[delivery]{Job: strconv.FormatInt(j.id, 10), Payload: d})
	}
}

// queueDelivery queues a delivery. A delivery that a fault drops is in the list of deliveries, too.
func (s *Server) queueDelivery(w engine.Webhook[delivery]) {
	if w.Payload.lost = s.core.ShouldDrop(); w.Payload.lost {
		s.outbox.Queue(&w)
		return
	}
	s.outbox.Post(w)
}

// deliver makes one attempt and records it. As at GitHub, there is no retry.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	d := &w.Payload
	s.core.Mu.Lock()
	s.ids.delivery++
	d.id, d.sentAt = s.ids.delivery, s.now()
	target, secret := d.hook.URL, d.hook.Secret
	s.core.Mu.Unlock()
	if d.lost {
		d.status, d.response.Code = "failed to connect to host", http.StatusBadGateway
	} else {
		s.sendDelivery(d, target, secret)
	}
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	switch {
	case d.lost:
	case d.response.Code >= 200 && d.response.Code < 300:
		s.core.Counts.Delivered++
	default:
		s.core.Counts.Failed++
	}
	// Deliveries can end in any order. The list is sorted by id.
	index, _ := slices.BinarySearchFunc(d.hook.deliveries, d.id, func(old *delivery, id int64) int { return int(old.id - id) })
	d.hook.deliveries = slices.Insert(d.hook.deliveries, index, d)
	d.hook.deliveries = slices.DeleteFunc(d.hook.deliveries, func(old *delivery) bool {
		return s.now().Sub(old.sentAt) > deliveryRetention
	})
}

func (s *Server) sendDelivery(d *delivery, target, secret string) {
	d.response = s.core.Send(target, d.body, func(h http.Header) {
		setHookHeaders(h, d, secret)
		if s.opts.URL != "" {
			_, host, _ := strings.Cut(s.opts.URL, "://")
			h.Set("X-Github-Enterprise-Host", host)
		}
	})
	d.status = "OK"
	switch err := d.response.Err; {
	case errors.Is(err, context.DeadlineExceeded):
		d.status, d.response.Code = "timed out", http.StatusGatewayTimeout
	case err != nil && d.response.RequestHeader == nil:
		d.status, d.response.Code = "invalid HTTP Response: bad URL", http.StatusBadGateway
	case err != nil:
		d.status, d.response.Code = "failed to connect to host", http.StatusBadGateway
	case d.response.Code >= 300:
		d.status = "Invalid HTTP Response: " + strconv.Itoa(d.response.Code)
	}
}

// setHookHeaders sets the headers of a delivery. See GitHub's documentation "Webhook events and
// payloads", delivery headers.
func setHookHeaders(h http.Header, d *delivery, secret string) {
	target, id := "organization", d.repoID
	switch {
	case d.hook.Owner == "app":
		target, id = "integration", d.installationID
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

// findHook returns the hook that a call names, or nil.
func (s *Server) findHook(c *call) *hook {
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

func (d *delivery) encodeItem() map[string]any {
	out := map[string]any{
		"id": d.id, "guid": d.guid, "delivered_at": formatTime(d.sentAt), "redelivery": d.redelivery,
		"duration": d.response.Duration.Seconds(), "status": d.status, "status_code": d.response.Code, "event": "workflow_job",
		"action": d.action, "installation_id": nil, "repository_id": d.repoID, "throttled_at": nil,
	}
	if d.installationID != 0 {
		out["installation_id"] = d.installationID
	}
	return out
}

// listDeliveries lists the deliveries of a hook, newest first. A cursor is "v1_" and the id of the
// first delivery of the page.
func (s *Server) listDeliveries(c *call) response {
	h := s.findHook(c)
	if h == nil {
		return newNotFound()
	}
	query := c.r.URL.Query()
	size := min(parsePositive(query.Get("per_page"), 30), 100)
	cursorID := int64(0)
	if cursor := query.Get("cursor"); cursor != "" {
		id, err := strconv.ParseInt(strings.TrimPrefix(cursor, "v1_"), 10, 64)
		if err != nil {
			return newError(http.StatusBadRequest, "Invalid cursor")
		}
		cursorID = id
	}
	list, link := []map[string]any{}, ""
	for _, d := range slices.Backward(h.deliveries) {
		hasFailed := d.response.Code >= 400
		if (cursorID != 0 && d.id > cursorID) || (query.Get("status") == "failure") != hasFailed && query.Get("status") != "" {
			continue
		}
		if len(list) == size {
			query.Set("cursor", "v1_"+strconv.FormatInt(d.id, 10))
			u := *c.r.URL
			u.RawQuery = query.Encode()
			link = fmt.Sprintf("<%s%s>; rel=\"next\"", c.baseURL, u.RequestURI())
			break
		}
		list = append(list, d.encodeItem())
	}
	return response{status: http.StatusOK, body: list, link: link}
}

func (s *Server) findDelivery(c *call) *delivery {
	h := s.findHook(c)
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

func (s *Server) getDelivery(c *call) response {
	d := s.findDelivery(c)
	if d == nil {
		return newNotFound()
	}
	out := d.encodeItem()
	out["url"] = d.hook.URL
	out["request"] = map[string]any{"headers": flattenHeader(d.response.RequestHeader), "payload": json.RawMessage(d.body)}
	out["response"] = map[string]any{"headers": flattenHeader(d.response.Header), "payload": d.response.Text}
	return newOK(out)
}

func flattenHeader(h http.Header) map[string]string {
	out := map[string]string{}
	for key := range h {
		out[key] = h.Get(key)
	}
	return out
}

// redeliver sends the same event again with the same GUID.
func (s *Server) redeliver(c *call) response {
	d := s.findDelivery(c)
	if d == nil {
		return newNotFound()
	}
	redelivery := delivery{
		hook: d.hook, guid: d.guid, action: d.action, installationID: d.installationID, repoID: d.repoID, redelivery: true,
		body: d.body,
	}
	s.queueDelivery(engine.Webhook[delivery]{Unordered: true, Payload: redelivery})
	return response{status: http.StatusAccepted, body: map[string]any{}}
}
