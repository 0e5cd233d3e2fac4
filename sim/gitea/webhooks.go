// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// delivery is one event that is to be sent.
type delivery struct {
	id   string
	body []byte
}

// queueWebhook queues Gitea's webhook of a change and applies faults. The lock is held.
func (s *Server) queueWebhook(j *job) {
	if s.webhook.URL == "" || s.opts.Forgejo {
		return
	}
	action, _ := j.giteaStatus()
	body, err := json.Marshal(map[string]any{
		"action": action, "workflow_job": s.encodeGiteaJob(j), "repository": s.encodeRepository(j.repo),
		"organization": map[string]any{"id": 2, "name": j.repo.owner(), "username": j.repo.owner()},
		"sender":       map[string]any{"id": 3, "login": "hyperfleet"},
	})
	if err != nil { // cannot happen: the values are strings and numbers
		s.opts.Log.Error("encode webhook", "error", err)
		return
	}
	if !s.core.ShouldDrop() {
		s.outbox.Post(engine.Webhook[delivery]{Job: strconv.FormatInt(j.id, 10), Payload: delivery{id: engine.NewUUID(), body: body}})
	}
}

// deliver makes one attempt. As at Gitea, there is no retry.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	s.core.Mu.Lock()
	target := s.webhook
	s.core.Mu.Unlock()
	code := s.core.Send(target.URL, w.Payload.body, func(h http.Header) { setHeaders(h, w.Payload, target.Secret) }).Code
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if code/100 == 2 {
		s.core.Counts.Delivered++
		return
	}
	s.core.Counts.Failed++
}

// setHeaders sets the headers of a delivery (services/webhook/deliver.go).
func setHeaders(h http.Header, d delivery, secret string) {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(d.body)
	sum := hex.EncodeToString(mac.Sum(nil))
	h.Set("Content-Type", "application/json")
	for _, prefix := range []string{"X-Gitea-", "X-Gogs-", "X-Github-"} {
		h.Set(prefix+"Delivery", d.id)
		h.Set(prefix+"Event", "workflow_job")
		h.Set(prefix+"Event-Type", "workflow_job")
	}
	h.Set("X-Gitea-Signature", sum)
	h.Set("X-Gogs-Signature", sum)
	h.Set("X-Hub-Signature-256", "sha256="+sum)
}
