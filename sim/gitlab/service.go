// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// updateEvery is how often runners are asked to speak of their jobs, in seconds.
const updateEvery = "3"

// runnerBy finds a runner by its authentication token. One that has expired is nobody's.
func (s *Server) runnerBy(c *call) *runner {
	given := c.text("token")
	for _, r := range s.runners {
		if r.token == given && (r.expires.IsZero() || c.now.Before(r.expires)) {
			return r
		}
	}
	return nil
}

func (s *Server) answerVerify(c *call) reply {
	r := s.runnerBy(c)
	if r == nil {
		return fail(http.StatusForbidden, "403 Forbidden")
	}
	r.contacted, r.systemID = c.now, c.text("system_id")
	return ok(map[string]any{"id": r.id, "token": r.token, "token_expires_at": stamp(r.expires)})
}

// hold keeps a runner's question for a job as long as the answer would be the same as the
// last, up to PollTimeout: docs "Long polling" of runners.
func (s *Server) hold(c *call) {
	var asked struct {
		LastUpdate string `json:"last_update"`
	}
	if err := json.Unmarshal(c.body, &asked); err != nil || asked.LastUpdate == "" {
		return
	}
	timeout := s.opts.Clock.After(s.opts.PollTimeout)
	for {
		s.core.Mu.Lock()
		same, changed := asked.LastUpdate == s.lastUpdate(), s.changed
		s.core.Mu.Unlock()
		if !same {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			return
		case <-c.r.Context().Done():
			return
		case <-s.core.Done():
			return
		}
	}
}

// lastUpdate stands for all that answers to runners depend on.
func (s *Server) lastUpdate() string { return fmt.Sprintf("%032x", s.news) }

// answerRequest gives the runner the oldest job that it takes: 201, or 204 without one.
func (s *Server) answerRequest(c *call) reply {
	r := s.runnerBy(c)
	if r == nil {
		return fail(http.StatusForbidden, "403 Forbidden")
	}
	r.contacted, r.systemID = c.now, c.text("system_id")
	nothing := reply{status: http.StatusNoContent, header: map[string]string{"X-GitLab-Last-Update": s.lastUpdate()}}
	if r.paused {
		return nothing
	}
	// GitLab lets one runner run many jobs; runners of one job must not ask again.
	if r.running != nil {
		s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("runner %d asks for a job and runs job %d", r.id, r.running.id))
	}
	j := s.next(r)
	if j == nil || c.r.Context().Err() != nil { // nobody is there to take it
		return nothing
	}
	s.start(j, r)
	return reply{status: http.StatusCreated, body: s.workJSON(j)}
}

// workJSON is a job as its runner is given it.
func (s *Server) workJSON(j *job) map[string]any {
	p, timeout := j.pipeline.project, int64(s.timeout(j)/time.Second)
	script := j.command
	if script == "" {
		script = "sleep " + strconv.FormatFloat(j.duration.Seconds(), 'f', -1, 64)
	}
	variable := func(key, value string, public bool) map[string]any {
		return map[string]any{"key": key, "value": value, "public": public, "masked": !public, "raw": false, "file": false}
	}
	return map[string]any{
		"id": j.id, "token": j.token, "allow_git_fetch": true,
		"job_info": map[string]any{
			"id": j.id, "name": j.name, "stage": j.stage, "project_id": p.id, "project_name": p.path,
		},
		"git_info": map[string]any{
			"repo_url": strings.Replace(s.base, "//", "//gitlab-ci-token:"+j.token+"@", 1) + "/" + p.path + ".git",
			"ref":      "main", "ref_type": "branch", "sha": j.pipeline.sha, "depth": 20,
		},
		"runner_info": map[string]any{"timeout": timeout, "runner_session_url": nil},
		"variables": []any{
			variable("CI", "true", true), variable("GITLAB_CI", "true", true), variable("GIT_STRATEGY", "none", true),
			variable("CI_JOB_ID", strconv.FormatInt(j.id, 10), true), variable("CI_JOB_NAME", j.name, true),
			variable("CI_PROJECT_PATH", p.path, true), variable("CI_JOB_TOKEN", j.token, false),
		},
		"steps": []any{map[string]any{
			"name": "script", "script": []string{script}, "timeout": timeout, "when": "on_success", "allow_failure": false,
		}},
		"image": nil, "services": []any{}, "artifacts": nil, "cache": []any{}, "credentials": []any{}, "dependencies": []any{},
		"features": map[string]any{"trace_sections": true, "failure_reasons": []string{"unknown_failure", "script_failure"}},
	}
}

// jobOf finds the job of a runner's call by its token; a job that is over is refused, and
// the header tells what became of it.
func (s *Server) jobOf(c *call, token string) (*job, *reply) {
	j := s.jobs[c.pathID("id")]
	if j == nil || j.token == "" || j.token != token {
		out := fail(http.StatusForbidden, "403 Forbidden")
		return nil, &out
	}
	if r := s.runners[j.ran.id]; r != nil {
		r.contacted = c.now
	}
	if j.status != statusRunning {
		out := forbidden("Job is not running")
		out.header = map[string]string{"Job-Status": j.status}
		return nil, &out
	}
	j.touched = c.now
	return j, nil
}

func (s *Server) answerUpdateJob(c *call) reply {
	j, refused := s.jobOf(c, c.text("token"))
	if refused != nil {
		return *refused
	}
	switch state := c.text("state"); state {
	case statusSuccess:
		s.finish(j, statusSuccess, "")
	case statusFailed:
		reason := c.text("failure_reason")
		if reason == "" {
			reason = "unknown_failure"
		}
		s.finish(j, statusFailed, reason)
	}
	return reply{status: http.StatusOK, body: "200", header: map[string]string{
		"Job-Status": j.status, "X-GitLab-Trace-Update-Interval": updateEvery,
	}}
}

// answerTrace appends to a job's log what follows on what is there.
func (s *Server) answerTrace(c *call) reply {
	j, refused := s.jobOf(c, c.r.Header.Get("Job-Token"))
	if refused != nil {
		return *refused
	}
	var first, last int
	if _, err := fmt.Sscanf(c.r.Header.Get("Content-Range"), "%d-%d", &first, &last); err != nil {
		s.violate("request", c.r.Method, c.r.URL.Path, fmt.Errorf("read Content-Range: %w", err))
		return wrong("400 Missing header Content-Range")
	}
	have := strconv.Itoa(len(j.trace))
	if first != len(j.trace) || last-first+1 != len(c.body) {
		return reply{status: http.StatusRequestedRangeNotSatisfiable, body: map[string]any{
			"error": "416 Range Not Satisfiable",
		}, header: map[string]string{"Range": "0-" + have}}
	}
	j.trace = append(j.trace, c.body...)
	return reply{status: http.StatusAccepted, body: "0-" + strconv.Itoa(len(j.trace)), header: map[string]string{
		"Job-Status": j.status, "Range": "0-" + strconv.Itoa(len(j.trace)), "X-GitLab-Trace-Update-Interval": updateEvery,
	}}
}
