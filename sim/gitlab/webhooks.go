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

// hookHealth is the state of a hook. See the documentation "Webhooks", section "Auto-disabled
// webhooks".
type hookHealth struct {
	failures      int
	delay         time.Duration
	disabledUntil time.Time
}

const (
	// maxFailures is the number of consecutive failures after which a hook is disabled for a while.
	maxFailures = 4
	firstDelay  = time.Minute
	maxDelay    = 24 * time.Hour
)

// queueWebhook queues the webhook of a change and applies faults. The lock is held.
func (s *Server) queueWebhook(j *job) {
	if s.webhook.URL == "" {
		return
	}
	if s.now().Before(s.health.disabledUntil) {
		s.core.Counts.Failed++ // the hook is disabled
		return
	}
	body, err := json.Marshal(s.encodeEvent(j))
	if err != nil {
		s.addViolation("webhook", http.MethodPost, s.webhook.URL, err)
		return
	}
	if !s.core.ShouldDrop() {
		s.outbox.Post(engine.Webhook[delivery]{Job: strconv.FormatInt(j.id, 10), Payload: delivery{key: engine.NewUUID(), body: body}})
	}
}

// deliver makes one attempt. As at GitLab, there is no retry.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	s.core.Mu.Lock()
	target, origin := s.webhook, s.baseURL
	s.core.Mu.Unlock()
	code := s.core.Send(target.URL, w.Payload.body, func(h http.Header) { s.setHeaders(h, w.Payload, target.Secret, origin) }).Code
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
		s.health.delay = min(max(firstDelay, 2*s.health.delay), maxDelay)
		s.health.disabledUntil = s.now().Add(s.health.delay)
	}
}

// setHeaders sets the headers of a delivery. See the documentation "Webhooks", sections "Webhook
// request headers", "Secret tokens" and "Signing tokens". The id and the timestamp are always set.
func (s *Server) setHeaders(h http.Header, d delivery, secret, origin string) {
	timestamp := strconv.FormatInt(s.now().Unix(), 10)
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", "GitLab/19.0.0")
	h.Set("Idempotency-Key", d.key)
	h.Set("X-Gitlab-Event", "Job Hook")
	h.Set("X-Gitlab-Event-Uuid", engine.NewUUID())
	h.Set("X-Gitlab-Webhook-Uuid", engine.NewUUID())
	h.Set("X-Gitlab-Instance", origin)
	h.Set("Webhook-Id", d.key)
	h.Set("Webhook-Timestamp", timestamp)
	encoded, hasSigningKey := strings.CutPrefix(secret, "whsec_")
	switch {
	case hasSigningKey:
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return // unsigned: GitLab would have rejected the token
		}
		mac := hmac.New(sha256.New, key)
		_, _ = fmt.Fprintf(mac, "%s.%s.%s", d.key, timestamp, d.body)
		h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	case secret != "":
		h.Set("X-Gitlab-Token", secret)
	}
}

// formatEventTime formats a time as job events do. It returns nil for the zero time.
func formatEventTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// encodeEvent returns a job event. See the documentation "Webhook events", section "Job events".
func (s *Server) encodeEvent(j *job) map[string]any {
	p := j.pipeline
	_, name := splitPath(p.project.path)
	namespace, _ := splitPath(p.project.path)
	home := s.baseURL + "/" + p.project.path
	failure := j.failure
	if failure == "" {
		failure = "unknown_failure"
	}
	out := map[string]any{
		"object_kind": "build", "ref": "main", "tag": false, "before_sha": strings.Repeat("0", 40), "sha": p.sha, "retries_count": 0,
		"build_id": j.id, "build_name": j.name, "build_stage": j.stage, "build_status": j.status,
		"build_created_at": formatEventTime(j.createdAt), "build_started_at": formatEventTime(j.startedAt),
		"build_finished_at": formatEventTime(j.finishedAt), "build_created_at_iso": formatTime(j.createdAt),
		"build_started_at_iso": formatTime(j.startedAt), "build_finished_at_iso": formatTime(j.finishedAt),
		"build_duration": durationSeconds(j.startedAt, j.finishedAt), "build_queued_duration": s.queuedDuration(j),
		"build_allow_failure":  false,
		"build_failure_reason": failure, "pipeline_id": p.id, "project_id": p.project.id,
		"project_name": strings.ReplaceAll(p.project.path, "/", " / "), "runner": nil, "environment": nil,
		"user": map[string]any{"id": 3, "name": "HyperFleet", "username": "hyperfleet", "avatar_url": nil, "email": "[REDACTED]"},
		"commit": map[string]any{
			"id": p.id, "name": nil, "sha": p.sha, "message": "Build\n", "author_name": "HyperFleet", "author_email": "[REDACTED]",
			"author_url": s.baseURL + "/hyperfleet", "status": "running", "duration": nil, "started_at": nil, "finished_at": nil,
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
	if j.ranOn.id != 0 {
		out["runner"] = map[string]any{
			"id": j.ranOn.id, "description": j.ranOn.description, "runner_type": j.ranOn.kind, "active": true,
			"is_shared": j.ranOn.kind == typeInstance, "tags": j.ranOn.tags,
		}
	}
	if j.environment != "" {
		out["environment"] = map[string]any{"name": j.environment, "action": "start", "deployment_tier": "production"}
	}
	return out
}
