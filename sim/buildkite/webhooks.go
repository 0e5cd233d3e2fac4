// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// delivery is one webhook that is to be sent.
type delivery struct {
	event string
	body  []byte
}

// queueWebhook queues the webhook of a change and applies faults. The lock is held.
func (s *Server) queueWebhook(j *job, event string) {
	if s.target.URL == "" {
		return
	}
	body, err := json.Marshal(s.encodeEvent(j, event))
	if err != nil {
		s.core.AddViolation("webhook", "POST", event, err.Error())
		return
	}
	if !s.core.ShouldDrop() {
		s.outbox.Post(engine.Webhook[delivery]{Job: j.uuid, Payload: delivery{event: event, body: body}})
	}
}

// deliver makes one attempt and counts its result.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	s.core.Mu.Lock()
	target := s.target
	s.core.Mu.Unlock()
	code := s.core.Send(target.URL, w.Payload.body, func(h http.Header) { s.setHeaders(h, w.Payload, target.Secret) }).Code
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if code >= 200 && code < 300 {
		s.core.Counts.Delivered++
	} else {
		s.core.Counts.Failed++
	}
}

func (s *Server) setHeaders(h http.Header, d delivery, secret string) {
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("User-Agent", "Buildkite-Request")
	h.Set("X-Buildkite-Event", d.event)
	h.Set("X-Buildkite-Request", engine.NewUUID())
	switch {
	case secret == "":
	case s.opts.PlainToken:
		h.Set("X-Buildkite-Token", secret)
	default:
		timestamp := strconv.FormatInt(s.now().Unix(), 10)
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(append([]byte(timestamp+"."), d.body...))
		h.Set("X-Buildkite-Signature", "timestamp="+timestamp+",signature="+hex.EncodeToString(mac.Sum(nil)))
	}
}

func (s *Server) apiURL(parts string) string {
	return "https://api.buildkite.com/v2/organizations/" + s.opts.Organization + parts
}

func (s *Server) webURL(b *build) string {
	return fmt.Sprintf("https://buildkite.com/%s/%s/builds/%d", s.opts.Organization, b.pipeline.slug, b.number)
}

// encodeEvent returns the payload of a webhook, in the format of the REST API:
// https://buildkite.com/docs/apis/rest-api/jobs.
func (s *Server) encodeEvent(j *job, event string) map[string]any {
	b, slug := j.build, j.build.pipeline.slug
	buildURL := s.apiURL(fmt.Sprintf("/pipelines/%s/builds/%d", slug, b.number))
	return map[string]any{
		"event": event,
		"job":   s.encodeJob(j, event, buildURL),
		"build": map[string]any{
			"id": b.uuid, "url": buildURL, "web_url": s.webURL(b), "number": b.number, "state": "running", "blocked": false,
			"message": "Change", "commit": b.commit, "branch": "main", "tag": nil, "source": "api", "creator": nil,
			"created_at": formatTime(b.createdAt), "scheduled_at": formatTime(b.createdAt), "started_at": formatTime(b.createdAt),
			"finished_at": nil, "meta_data": map[string]any{}, "pull_request": nil, "rebuilt_from": nil,
		},
		"pipeline": map[string]any{
			"id": b.pipeline.uuid, "url": s.apiURL("/pipelines/" + slug), "web_url": "https://buildkite.com/" + b.pipeline.name,
			"name": b.workflow, "slug": slug, "description": nil, "repository": "git@example.com:" + b.pipeline.name + ".git",
		},
		"sender": map[string]any{"id": s.orgUUID, "name": "Some Person"},
	}
}

func (s *Server) encodeJob(j *job, event, buildURL string) map[string]any {
	if event == "job.activated" { // the payload is the block step that the job waited for
		return map[string]any{
			"id": engine.NewUUID(), "type": "manual", "label": j.environment, "state": "unblocked", "web_url": nil,
			"unblocked_at": formatTime(s.now()), "unblockable": false, "unblock_url": s.webURL(j.build),
		}
	}
	out := map[string]any{
		"id": j.uuid, "graphql_id": "", "type": "script", "name": j.name, "step_key": j.stepKey, "step": map[string]any{"id": j.uuid},
		"priority": map[string]any{"number": 0}, "agent_query_rules": j.rules, "state": j.restState(), "build_url": buildURL,
		"web_url": s.webURL(j.build) + "#" + j.uuid, "log_url": buildURL + "/jobs/" + j.uuid + "/log", "command": j.script(),
		"soft_failed": false, "exit_status": nil, "artifact_paths": nil, "agent": nil, "created_at": formatTime(j.createdAt),
		"scheduled_at": formatTime(j.createdAt), "runnable_at": formatTime(j.runnableAt), "started_at": formatTime(j.startedAt),
		"finished_at": formatTime(j.finishedAt), "expired_at": nil, "retried": false, "retried_in_job_id": nil, "retries_count": nil,
		"parallel_group_index": nil, "parallel_group_total": nil, "cluster_queue_id": j.queue.uuid,
	}
	if j.state == stateFinished {
		out["exit_status"] = j.exitStatus
	}
	if j.ranOn.id != 0 {
		out["agent"] = map[string]any{"id": j.ranOn.uuid, "url": s.apiURL("/agents/" + j.ranOn.uuid), "name": j.ranOn.name}
	}
	return out
}
