// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
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
	id       string
	body     []byte
	attempts int
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
	d := delivery{id: "msg_" + strconv.FormatInt(s.ids.message, 10), body: body}
	s.outbox.Post(engine.Webhook[delivery]{Job: strconv.FormatInt(j.ID, 10), What: d})
}

// deliver makes one attempt; one that is not answered with 2xx is followed by another.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	d := &w.What
	s.core.Mu.Lock()
	target, lost := s.target, s.core.Lost()
	s.core.Mu.Unlock()
	answer := engine.Answer{}
	if !lost && target.URL != "" {
		answer = s.core.Send(target.URL, d.body, func(h http.Header) { s.sign(h, *d, target.Secret) })
	}
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	d.attempts++
	switch {
	case target.URL == "":
		return
	case answer.Code/100 == 2:
		s.core.Counts.Delivered++
		return
	case !lost:
		s.core.Counts.Failed++
		s.opts.Log.Warn("a webhook was not taken", "id", d.id, "attempt", d.attempts, "status", answer.Code)
	}
	// Gone: the receiver wants no more (Standard Webhooks, "Deliverability").
	if answer.Code == http.StatusGone || d.attempts >= s.opts.Attempts || s.target.URL == "" {
		s.opts.Log.Error("a webhook was given up", "id", d.id, "attempts", d.attempts)
		return
	}
	w.NotBefore = s.now().Add(max(s.backoff(d.attempts), s.retryAfter(answer)))
	s.outbox.Again(w)
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
	return wait + time.Duration(s.core.Rand.Int64N(int64(wait/5)+1))
}

// retryAfter is what the answer asks to wait.
func (s *Server) retryAfter(answer engine.Answer) time.Duration {
	seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, s.opts.RetryMost)
}

// sign makes the headers anew for each attempt: receivers refuse old ones.
func (s *Server) sign(h http.Header, d delivery, secret string) {
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "forgesim-generic")
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
