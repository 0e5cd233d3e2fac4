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

// updateInterval is the interval in seconds at which runners update their jobs.
const updateInterval = "3"

// findRunner returns the runner with the authentication token of a call, or nil. An expired token
// does not count.
func (s *Server) findRunner(c *call) *runner {
	token := c.text("token")
	for _, r := range s.runners {
		if r.token == token && (r.expiresAt.IsZero() || c.now.Before(r.expiresAt)) {
			return r
		}
	}
	return nil
}

func (s *Server) verifyRunner(c *call) response {
	r := s.findRunner(c)
	if r == nil {
		return newError(http.StatusForbidden, "403 Forbidden")
	}
	r.contactedAt, r.systemID = c.now, c.text("system_id")
	return newOK(map[string]any{"id": r.id, "token": r.token, "token_expires_at": formatTime(r.expiresAt)})
}

// holdPoll delays a runner's request for a job while the response would be the same as the last
// response, for at most PollTimeout. See the documentation "Long polling" of runners.
func (s *Server) holdPoll(c *call) {
	var req struct {
		LastUpdate string `json:"last_update"`
	}
	if err := json.Unmarshal(c.body, &req); err != nil || req.LastUpdate == "" {
		return
	}
	timeout := s.opts.Clock.After(s.opts.PollTimeout)
	for {
		s.core.Mu.Lock()
		isSame, changed := req.LastUpdate == s.lastUpdate(), s.changed
		s.core.Mu.Unlock()
		if !isSame {
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

// lastUpdate returns a value that changes when responses to runners can change.
func (s *Server) lastUpdate() string { return fmt.Sprintf("%032x", s.version) }

// requestJob assigns the oldest job that the runner accepts. The status is 201 with a job and 204
// without.
func (s *Server) requestJob(c *call) response {
	r := s.findRunner(c)
	if r == nil {
		return newError(http.StatusForbidden, "403 Forbidden")
	}
	r.contactedAt, r.systemID = c.now, c.text("system_id")
	noJob := response{status: http.StatusNoContent, header: map[string]string{"X-GitLab-Last-Update": s.lastUpdate()}}
	if r.paused {
		return noJob
	}
	// GitLab allows a runner to run many jobs. A HyperFleet runner runs one job and must not request another.
	if r.job != nil {
		s.addViolation("request", c.r.Method, c.r.URL.Path, fmt.Errorf("runner %d requests a job while it runs job %d", r.id, r.job.id))
	}
	j := s.findJobFor(r)
	if j == nil || c.r.Context().Err() != nil { // a closed connection cannot receive the job
		return noJob
	}
	s.startJob(j, r)
	return response{status: http.StatusCreated, body: s.encodeJobPayload(j)}
}

// encodeJobPayload returns a job as its runner receives it.
func (s *Server) encodeJobPayload(j *job) map[string]any {
	p, timeout := j.pipeline.project, int64(s.timeout(j)/time.Second)
	script := j.command
	if script == "" {
		script = "sleep " + strconv.FormatFloat(j.duration.Seconds(), 'f', -1, 64)
	}
	const public, masked = false, true
	newVariable := func(key, value string, isMasked bool) map[string]any {
		return map[string]any{"key": key, "value": value, "public": !isMasked, "masked": isMasked, "raw": false, "file": false}
	}
	return map[string]any{
		"id": j.id, "token": j.token, "allow_git_fetch": true,
		"job_info": map[string]any{
			"id": j.id, "name": j.name, "stage": j.stage, "project_id": p.id, "project_name": p.path,
		},
		"git_info": map[string]any{
			"repo_url": strings.Replace(s.baseURL, "//", "//gitlab-ci-token:"+j.token+"@", 1) + "/" + p.path + ".git",
			"ref":      "main", "ref_type": "branch", "sha": j.pipeline.sha, "depth": 20,
		},
		"runner_info": map[string]any{"timeout": timeout, "runner_session_url": nil},
		"variables": []any{
			newVariable("CI", "true", public), newVariable("GITLAB_CI", "true", public), newVariable("GIT_STRATEGY", "none", public),
			newVariable("CI_JOB_ID", strconv.FormatInt(j.id, 10), public), newVariable("CI_JOB_NAME", j.name, public),
			newVariable("CI_PROJECT_PATH", p.path, public), newVariable("CI_JOB_TOKEN", j.token, masked),
		},
		"steps": []any{map[string]any{
			"name": "script", "script": []string{script}, "timeout": timeout, "when": "on_success", "allow_failure": false,
		}},
		"image": nil, "services": []any{}, "artifacts": nil, "cache": []any{}, "credentials": []any{}, "dependencies": []any{},
		"features": map[string]any{"trace_sections": true, "failure_reasons": []string{"unknown_failure", "script_failure"}},
	}
}

// findJob returns the job of a runner's call by the job's token. If the job has ended, findJob
// returns an error response whose header has the status of the job.
func (s *Server) findJob(c *call, token string) (*job, *response) {
	j := s.jobs[c.pathID("id")]
	if j == nil || j.token == "" || j.token != token {
		out := newError(http.StatusForbidden, "403 Forbidden")
		return nil, &out
	}
	if r := s.runners[j.ranOn.id]; r != nil {
		r.contactedAt = c.now
	}
	if j.status != statusRunning {
		out := newForbidden("Job is not running")
		out.header = map[string]string{"Job-Status": j.status}
		return nil, &out
	}
	j.touchedAt = c.now
	return j, nil
}

func (s *Server) updateJob(c *call) response {
	j, rejection := s.findJob(c, c.text("token"))
	if rejection != nil {
		return *rejection
	}
	switch state := c.text("state"); state {
	case statusSuccess:
		s.finishJob(j, statusSuccess, "")
	case statusFailed:
		reason := c.text("failure_reason")
		if reason == "" {
			reason = "unknown_failure"
		}
		s.finishJob(j, statusFailed, reason)
	}
	return response{status: http.StatusOK, body: "200", header: map[string]string{
		"Job-Status": j.status, "X-GitLab-Trace-Update-Interval": updateInterval,
	}}
}

// appendTrace appends a part to a job's log. It rejects a part that does not start at the end of
// the log.
func (s *Server) appendTrace(c *call) response {
	j, rejection := s.findJob(c, c.r.Header.Get("Job-Token"))
	if rejection != nil {
		return *rejection
	}
	var first, last int
	if _, err := fmt.Sscanf(c.r.Header.Get("Content-Range"), "%d-%d", &first, &last); err != nil {
		s.addViolation("request", c.r.Method, c.r.URL.Path, fmt.Errorf("read Content-Range: %w", err))
		return newParamError("400 Missing header Content-Range")
	}
	length := strconv.Itoa(len(j.trace))
	if first != len(j.trace) || last-first+1 != len(c.body) {
		return response{status: http.StatusRequestedRangeNotSatisfiable, body: map[string]any{
			"error": "416 Range Not Satisfiable",
		}, header: map[string]string{"Range": "0-" + length}}
	}
	j.trace = append(j.trace, c.body...)
	return response{status: http.StatusAccepted, body: "0-" + strconv.Itoa(len(j.trace)), header: map[string]string{
		"Job-Status": j.status, "Range": "0-" + strconv.Itoa(len(j.trace)), "X-GitLab-Trace-Update-Interval": updateInterval,
	}}
}
