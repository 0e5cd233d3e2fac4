// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// delivery is one attempt to deliver one event.
type delivery struct {
	key       string // idempotency key
	job       int64  // whose news it is
	notBefore time.Time
	body      []byte
}

// hookHealth: docs "Webhooks", section "Auto-disabled webhooks".
type hookHealth struct {
	failures int
	pause    time.Duration
	until    time.Time
}

const (
	// maxFailures in a row, after which a hook is disabled for a while.
	maxFailures = 4
	firstPause  = time.Minute
	longest     = 24 * time.Hour
)

// notify queues the webhook of a change, with faults applied. The lock is held.
func (s *Server) notify(j *job) {
	if s.webhook.URL == "" {
		return
	}
	if s.now().Before(s.health.until) {
		s.counts.Failed++ // the hook is disabled, and nobody is told
		return
	}
	body, err := json.Marshal(s.eventJSON(j))
	if err != nil {
		s.violate("webhook", http.MethodPost, s.webhook.URL, err)
		return
	}
	s.post(&delivery{key: randomUUID(), job: j.id, body: body, notBefore: s.now()})
}

// lateBy bounds how late a reordered or duplicated webhook is.
const lateBy = 3 * time.Second

func (s *Server) post(d *delivery) {
	if s.chance(s.faults.WebhookLost) {
		s.counts.Lost++
		return
	}
	if s.chance(s.faults.WebhookReordered) {
		d.notBefore = s.now().Add(s.late())
	}
	s.outbox = append(s.outbox, d)
	if s.chance(s.faults.WebhookDuplicated) {
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

// sendWebhooks delivers the outbox, several at a time. GitLab promises no order; the
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
		if s.flying[d.job] {
			continue
		}
		s.outbox = slices.Delete(s.outbox, i, i+1)
		s.sending++
		s.flying[d.job] = true
		return d, 0
	}
	return nil, wait
}

// deliver makes one attempt. There is no second one, as at GitLab.
func (s *Server) deliver(d *delivery) {
	s.mu.Lock()
	target := s.webhook
	s.mu.Unlock()
	good := s.attempt(d, target.URL, target.Secret)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending--
	delete(s.flying, d.job)
	if good {
		s.counts.Delivered++
		s.health = hookHealth{}
		return
	}
	s.counts.Failed++
	s.health.failures++
	if s.health.failures >= maxFailures {
		s.health.pause = min(max(firstPause, 2*s.health.pause), longest)
		s.health.until = s.now().Add(s.health.pause)
	}
}

func (s *Server) attempt(d *delivery, target, secret string) bool {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.HookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(d.body))
	if err != nil {
		return false
	}
	s.sign(req.Header, d, secret)
	resp, err := s.client.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 8<<10))
	return resp.StatusCode < 300
}

// sign sets a delivery's headers: docs "Webhooks", sections "Webhook request headers",
// "Secret tokens" and "Signing tokens". Id and timestamp are always there.
func (s *Server) sign(h http.Header, d *delivery, secret string) {
	at := strconv.FormatInt(s.now().Unix(), 10)
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "GitLab/19.0.0")
	h.Set("Idempotency-Key", d.key)
	h.Set("X-Gitlab-Event", "Job Hook")
	h.Set("X-Gitlab-Event-Uuid", randomUUID())
	h.Set("X-Gitlab-Webhook-Uuid", randomUUID())
	h.Set("X-Gitlab-Instance", s.origin())
	h.Set("Webhook-Id", d.key)
	h.Set("Webhook-Timestamp", at)
	encoded, signing := strings.CutPrefix(secret, "whsec_")
	switch {
	case signing:
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return // unsigned: GitLab would not have taken the token
		}
		mac := hmac.New(sha256.New, key)
		_, _ = fmt.Fprintf(mac, "%s.%s.%s", d.key, at, d.body)
		h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	case secret != "":
		h.Set("X-Gitlab-Token", secret)
	}
}

func (s *Server) origin() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.base
}

func randomUUID() string {
	text := randomHex(16)
	return text[:8] + "-" + text[8:12] + "-4" + text[13:16] + "-a" + text[17:20] + "-" + text[20:]
}

// eventTime writes a time as job events do; nil when it is zero.
func eventTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// eventJSON is a job event: docs "Webhook events", section "Job events".
func (s *Server) eventJSON(j *job) map[string]any {
	p := j.pipeline
	_, name := split(p.project.path)
	namespace, _ := split(p.project.path)
	home := s.base + "/" + p.project.path
	failure := j.failure
	if failure == "" {
		failure = "unknown_failure"
	}
	out := map[string]any{
		"object_kind": "build", "ref": "main", "tag": false, "before_sha": strings.Repeat("0", 40), "sha": p.sha, "retries_count": 0,
		"build_id": j.id, "build_name": j.name, "build_stage": j.stage, "build_status": j.status,
		"build_created_at": eventTime(j.created), "build_started_at": eventTime(j.started), "build_finished_at": eventTime(j.finished),
		"build_created_at_iso": stamp(j.created), "build_started_at_iso": stamp(j.started), "build_finished_at_iso": stamp(j.finished),
		"build_duration": seconds(j.started, j.finished), "build_queued_duration": s.queuedFor(j), "build_allow_failure": false,
		"build_failure_reason": failure, "pipeline_id": p.id, "project_id": p.project.id,
		"project_name": strings.ReplaceAll(p.project.path, "/", " / "), "runner": nil, "environment": nil,
		"user": map[string]any{"id": 3, "name": "HyperFleet", "username": "hyperfleet", "avatar_url": nil, "email": "[REDACTED]"},
		"commit": map[string]any{
			"id": p.id, "name": nil, "sha": p.sha, "message": "Build\n", "author_name": "HyperFleet", "author_email": "[REDACTED]",
			"author_url": s.base + "/hyperfleet", "status": "running", "duration": nil, "started_at": nil, "finished_at": nil,
		},
		"repository": map[string]any{
			"name": name, "url": home + ".git", "description": nil, "homepage": home, "git_http_url": home + ".git",
			"git_ssh_url": "git@gitlab.invalid:" + p.project.path + ".git", "visibility_level": 0,
		},
		"project": map[string]any{
			"id": p.project.id, "name": name, "description": nil, "web_url": home, "avatar_url": nil, "git_http_url": home + ".git",
			"git_ssh_url": "git@gitlab.invalid:" + p.project.path + ".git", "namespace": namespace, "visibility_level": 0,
			"path_with_namespace": p.project.path, "default_branch": "main", "ci_config_path": nil,
		},
	}
	if p.name != "" {
		commit, _ := out["commit"].(map[string]any)
		commit["name"] = p.name
	}
	if j.ran.id != 0 {
		out["runner"] = map[string]any{
			"id": j.ran.id, "description": j.ran.description, "runner_type": j.ran.kind, "active": true,
			"is_shared": j.ran.kind == typeInstance, "tags": j.ran.tags,
		}
	}
	if j.environment != "" {
		out["environment"] = map[string]any{"name": j.environment, "action": "start", "deployment_tier": "production"}
	}
	return out
}
