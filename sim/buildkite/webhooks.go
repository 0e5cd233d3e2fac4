// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// delivery is one webhook to be sent.
type delivery struct {
	event     string
	job       string
	notBefore time.Time
	body      []byte
}

// notify queues the webhook of a change, with faults applied. The lock is held.
func (s *Server) notify(j *job, event string) {
	if s.target.URL == "" {
		return
	}
	body, err := json.Marshal(s.payload(j, event))
	if err != nil {
		s.violate("webhook", "POST", event, err.Error())
		return
	}
	d := &delivery{event: event, job: j.uuid, body: body, notBefore: s.now()}
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

// lateBy bounds how late a reordered or duplicated webhook is.
const lateBy = 3 * time.Second

func (s *Server) late() time.Duration { return time.Duration(s.rng.Int64N(int64(lateBy))) }

// parallelWebhooks is how many webhooks are under way at a time.
const parallelWebhooks = 8

// sendWebhooks delivers the outbox, several at a time. The order is kept between the
// webhooks of one job, unless a fault says otherwise.
func (s *Server) sendWebhooks() {
	slots := make(chan struct{}, parallelWebhooks)
	for s.ctx.Err() == nil {
		d, target, wait := s.nextDelivery()
		if d != nil {
			slots <- struct{}{}
			s.wg.Go(func() {
				defer func() { <-slots; poke(s.mail) }()
				s.deliver(d, target)
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

func (s *Server) nextDelivery() (*delivery, control.WebhookTarget, time.Duration) {
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
		return d, s.target, 0
	}
	return nil, s.target, wait
}

// deliver makes one attempt.
func (s *Server) deliver(d *delivery, target control.WebhookTarget) {
	code := s.attempt(d, target)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending--
	delete(s.flying, d.job)
	if code >= 200 && code < 300 {
		s.counts.Delivered++
	} else {
		s.counts.Failed++
	}
}

func (s *Server) attempt(d *delivery, target control.WebhookTarget) int {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.HookTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.URL, bytes.NewReader(d.body))
	if err != nil {
		return 0
	}
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	req.Header.Set("User-Agent", "Buildkite-Request")
	req.Header.Set("X-Buildkite-Event", d.event)
	req.Header.Set("X-Buildkite-Request", newUUID())
	switch {
	case target.Secret == "":
	case s.opts.PlainToken:
		req.Header.Set("X-Buildkite-Token", target.Secret)
	default:
		at := strconv.FormatInt(s.now().Unix(), 10)
		mac := hmac.New(sha256.New, []byte(target.Secret))
		mac.Write(append([]byte(at+"."), d.body...))
		req.Header.Set("X-Buildkite-Signature", "timestamp="+at+",signature="+hex.EncodeToString(mac.Sum(nil)))
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	return resp.StatusCode
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
			"id": newUUID(), "type": "manual", "label": j.environment, "state": "unblocked", "web_url": nil,
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
