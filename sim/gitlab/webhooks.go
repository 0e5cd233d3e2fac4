// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// delivery is one attempt to deliver one event.
type delivery struct {
	key  string // idempotency key
	body []byte
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
		s.core.Counts.Failed++ // the hook is disabled, and nobody is told
		return
	}
	body, err := json.Marshal(s.eventJSON(j))
	if err != nil {
		s.violate("webhook", http.MethodPost, s.webhook.URL, err)
		return
	}
	if !s.core.Lost() {
		s.outbox.Post(engine.Webhook[delivery]{Job: strconv.FormatInt(j.id, 10), What: delivery{key: engine.UUID(), body: body}})
	}
}

// deliver makes one attempt. There is no second one, as at GitLab.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	s.core.Mu.Lock()
	target, origin := s.webhook, s.base
	s.core.Mu.Unlock()
	code := s.core.Send(target.URL, w.What.body, func(h http.Header) { s.sign(h, w.What, target.Secret, origin) }).Code
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if code > 0 && code < 300 {
		s.core.Counts.Delivered++
		s.health = hookHealth{}
		return
	}
	s.core.Counts.Failed++
	s.health.failures++
	if s.health.failures >= maxFailures {
		s.health.pause = min(max(firstPause, 2*s.health.pause), longest)
		s.health.until = s.now().Add(s.health.pause)
	}
}

// sign sets a delivery's headers: docs "Webhooks", sections "Webhook request headers",
// "Secret tokens" and "Signing tokens". Id and timestamp are always there.
func (s *Server) sign(h http.Header, d delivery, secret, origin string) {
	at := strconv.FormatInt(s.now().Unix(), 10)
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "GitLab/19.0.0")
	h.Set("Idempotency-Key", d.key)
	h.Set("X-Gitlab-Event", "Job Hook")
	h.Set("X-Gitlab-Event-Uuid", engine.UUID())
	h.Set("X-Gitlab-Webhook-Uuid", engine.UUID())
	h.Set("X-Gitlab-Instance", origin)
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
