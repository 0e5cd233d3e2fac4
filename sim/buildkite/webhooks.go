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

// delivery is one webhook to be sent.
type delivery struct {
	event string
	body  []byte
}

// notify queues the webhook of a change, with faults applied. The lock is held.
func (s *Server) notify(j *job, event string) {
	if s.target.URL == "" {
		return
	}
	body, err := json.Marshal(s.payload(j, event))
	if err != nil {
		s.core.Violate("webhook", "POST", event, err.Error())
		return
	}
	if !s.core.Lost() {
		s.outbox.Post(engine.Webhook[delivery]{Job: j.uuid, What: delivery{event: event, body: body}})
	}
}

// deliver makes one attempt.
func (s *Server) deliver(w *engine.Webhook[delivery]) {
	s.core.Mu.Lock()
	target := s.target
	s.core.Mu.Unlock()
	code := s.core.Send(target.URL, w.What.body, func(h http.Header) { s.sign(h, w.What, target.Secret) }).Code
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if code >= 200 && code < 300 {
		s.core.Counts.Delivered++
	} else {
		s.core.Counts.Failed++
	}
}

func (s *Server) sign(h http.Header, d delivery, secret string) {
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("User-Agent", "Buildkite-Request")
	h.Set("X-Buildkite-Event", d.event)
	h.Set("X-Buildkite-Request", engine.UUID())
	switch {
	case secret == "":
	case s.opts.PlainToken:
		h.Set("X-Buildkite-Token", secret)
	default:
		at := strconv.FormatInt(s.now().Unix(), 10)
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write(append([]byte(at+"."), d.body...))
		h.Set("X-Buildkite-Signature", "timestamp="+at+",signature="+hex.EncodeToString(mac.Sum(nil)))
	}
}

func (s *Server) apiURL(parts string) string {
	return "https://api.buildkite.com/v2/organizations/" + s.opts.Organization + parts
}

func (s *Server) webURL(b *build) string {
	return fmt.Sprintf("https://buildkite.com/%s/%s/builds/%d", s.opts.Organization, b.pipeline.slug, b.number)
}

// payload has the shapes of the REST API: https://buildkite.com/docs/apis/rest-api/jobs.
func (s *Server) payload(j *job, event string) map[string]any {
	from, slug := j.build, j.build.pipeline.slug
	buildURL := s.apiURL(fmt.Sprintf("/pipelines/%s/builds/%d", slug, from.number))
	return map[string]any{
		"event": event,
		"job":   s.jobPayload(j, event, buildURL),
		"build": map[string]any{
			"id": from.uuid, "url": buildURL, "web_url": s.webURL(from), "number": from.number, "state": "running", "blocked": false,
			"message": "Change", "commit": from.commit, "branch": "main", "tag": nil, "source": "api", "creator": nil,
			"created_at": stamp(from.created), "scheduled_at": stamp(from.created), "started_at": stamp(from.created),
			"finished_at": nil, "meta_data": map[string]any{}, "pull_request": nil, "rebuilt_from": nil,
		},
		"pipeline": map[string]any{
			"id": from.pipeline.uuid, "url": s.apiURL("/pipelines/" + slug), "web_url": "https://buildkite.com/" + from.pipeline.name,
			"name": from.workflow, "slug": slug, "description": nil, "repository": "git@example.com:" + from.pipeline.name + ".git",
		},
		"sender": map[string]any{"id": s.orgUUID, "name": "Some Person"},
	}
}

func (s *Server) jobPayload(j *job, event, buildURL string) map[string]any {
	if event == "job.activated" { // of the block step that the job waited for
		return map[string]any{
			"id": engine.UUID(), "type": "manual", "label": j.environment, "state": "unblocked", "web_url": nil,
			"unblocked_at": stamp(s.now()), "unblockable": false, "unblock_url": s.webURL(j.build),
		}
	}
	out := map[string]any{
		"id": j.uuid, "graphql_id": "", "type": "script", "name": j.name, "step_key": j.stepKey, "step": map[string]any{"id": j.uuid},
		"priority": map[string]any{"number": 0}, "agent_query_rules": j.rules, "state": j.restState(), "build_url": buildURL,
		"web_url": s.webURL(j.build) + "#" + j.uuid, "log_url": buildURL + "/jobs/" + j.uuid + "/log", "command": j.script(),
		"soft_failed": false, "exit_status": nil, "artifact_paths": nil, "agent": nil, "created_at": stamp(j.created),
		"scheduled_at": stamp(j.created), "runnable_at": stamp(j.runnable), "started_at": stamp(j.started),
		"finished_at": stamp(j.finished), "expired_at": nil, "retried": false, "retried_in_job_id": nil, "retries_count": nil,
		"parallel_group_index": nil, "parallel_group_total": nil, "cluster_queue_id": j.queue.uuid,
	}
	if j.state == stateFinished {
		out["exit_status"] = j.exit
	}
	if j.ran.id != 0 {
		out["agent"] = map[string]any{"id": j.ran.uuid, "url": s.apiURL("/agents/" + j.ran.uuid), "name": j.ran.name}
	}
	return out
}
