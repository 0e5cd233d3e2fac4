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

// message is the body of a webhook.
type message struct {
	ID         string   `json:"id"`
	Source     string   `json:"source"`
	Name       string   `json:"name,omitempty"`
	State      string   `json:"state,omitempty"` // empty for queued jobs
	Conclusion string   `json:"conclusion,omitempty"`
	Labels     []string `json:"labels,omitempty"`
	URL        string   `json:"url,omitempty"`
}

// delivery is one webhook that is to be sent. All attempts have the same id.
type delivery struct {
	id       string
	body     []byte
	attempts int
}

// queueWebhook queues the webhook of a change. The lock is held.
func (s *Server) queueWebhook(j *job) {
	if s.target.URL == "" {
		return
	}
	event := message{ID: j.Key, Source: j.Repo, Name: j.Name, Conclusion: j.Conclusion, Labels: j.Labels, URL: j.url}
	switch j.Status {
	case statusRunning:
		event.State = "running"
	case statusCompleted:
		event.State = "completed"
	}
	body, err := json.Marshal(event)
	if err != nil { // cannot happen: the values are strings and lists of strings
		s.opts.Log.Error("encode webhook", "error", err)
		return
	}
	s.ids.message++
	d := delivery{id: "msg_" + strconv.FormatInt(s.ids.message, 10), body: body}
	s.outbox.Post(engine.Webhook[delivery]{Job: strconv.FormatInt(j.ID, 10), Payload: d})
}

// deliver makes one attempt. If the response is not 2xx, deliver queues another attempt.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	d := &w.Payload
	s.core.Mu.Lock()
	target, isLost := s.target, s.core.ShouldDrop()
	s.core.Mu.Unlock()
	resp := engine.Response{}
	if !isLost && target.URL != "" {
		resp = s.core.Send(target.URL, d.body, func(h http.Header) { s.setHeaders(h, *d, target.Secret) })
	}
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	d.attempts++
	switch {
	case target.URL == "":
		return
	case resp.Code/100 == 2:
		s.core.Counts.Delivered++
		return
	case !isLost:
		s.core.Counts.Failed++
		s.opts.Log.Warn("webhook delivery failed", "id", d.id, "attempt", d.attempts, "status", resp.Code)
	}
	// The status Gone means that the receiver rejects all further attempts (Standard Webhooks,
	// "Deliverability").
	if resp.Code == http.StatusGone || d.attempts >= s.opts.Attempts || s.target.URL == "" {
		s.opts.Log.Error("webhook dropped", "id", d.id, "attempts", d.attempts)
		return
	}
	w.NotBefore = s.now().Add(max(s.backoff(d.attempts), s.retryAfter(resp)))
	s.outbox.Requeue(w)
}

// backoff returns the delay before the next attempt. The delay doubles with each attempt. A random
// part of up to a fifth is added, so that many webhooks are not sent at the same time.
func (s *Server) backoff(attempts int) time.Duration {
	wait := s.opts.RetryDelay
	for range attempts - 1 {
		if wait *= 2; wait >= s.opts.MaxRetryDelay {
			wait = s.opts.MaxRetryDelay
			break
		}
	}
	return wait + time.Duration(s.core.Rand.Int64N(int64(wait/5)+1))
}

// retryAfter returns the delay of the Retry-After header, at most RetryMost.
func (s *Server) retryAfter(resp engine.Response) time.Duration {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, s.opts.MaxRetryDelay)
}

// setHeaders sets the headers of one attempt. Each attempt has a new timestamp, because receivers
// reject old timestamps.
func (s *Server) setHeaders(h http.Header, d delivery, secret string) {
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "forgesim-generic")
	if secret == "" {
		return
	}
	if s.opts.Signature == SignHub {
		h.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(computeHMAC([]byte(secret), d.body)))
		return
	}
	key, err := parseSigningKey(secret)
	if err != nil {
		return // SetWebhook has rejected such a secret
	}
	stamp := strconv.FormatInt(s.now().Unix(), 10)
	h.Set("Webhook-Id", d.id)
	h.Set("Webhook-Timestamp", stamp)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(computeHMAC(key, []byte(d.id+"."+stamp+"."), d.body)))
}

func computeHMAC(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}
