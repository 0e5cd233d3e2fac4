// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// maxLog is the maximum size of a job's log in bytes. The simulator drops the rest.
const maxLog = 1 << 20

// agent is one registered agent.
type agent struct {
	id          int64
	uuid        string
	name        string
	tags        []string
	acquiredJob *job // the job of the job acquisition token that the agent registered with
	isConnected bool
	lastSeen    time.Time
	job         *job
}

// removeAgent ends the session of an agent. The lock is held.
func (s *Server) removeAgent(a *agent) {
	delete(s.agents, a.id)
	maps.DeleteFunc(s.tokens, func(_ string, g grant) bool { return g.agent == a })
}

func (s *Server) registerAgent(c *call) response {
	var body struct {
		Name               string   `json:"name"`
		Hostname           string   `json:"hostname"`
		OS                 string   `json:"os"`
		Arch               string   `json:"arch"`
		ScriptEvalEnabled  bool     `json:"script_eval_enabled"`
		IgnoreInDispatches bool     `json:"ignore_in_dispatches"`
		Priority           string   `json:"priority"`
		Version            string   `json:"version"`
		Build              string   `json:"build"`
		Tags               []string `json:"meta_data"`
		PID                int      `json:"pid"`
		MachineID          string   `json:"machine_id"`
		Features           []string `json:"features"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	if s.core.Occurs(s.core.Faults().RegistrationRefused) {
		return newError(http.StatusUnauthorized, "Invalid access token")
	}
	for _, tag := range body.Tags {
		if key, ok := strings.CutPrefix(tag, "queue="); ok && s.findQueue(key) == nil {
			return newError(http.StatusUnprocessableEntity, fmt.Sprintf("Cluster queue %q does not exist in the cluster", key))
		}
	}
	s.lastAgent++
	s.registeredCount++
	a := &agent{id: s.lastAgent, uuid: engine.NewUUID(), name: body.Name, tags: body.Tags, lastSeen: c.now}
	if c.grant.isAcquisition {
		a.acquiredJob = c.grant.job
		if !body.IgnoreInDispatches {
			return newViolation(http.StatusUnprocessableEntity, "an agent with a job acquisition token must set ignore_in_dispatches")
		}
	}
	if a.name == "" {
		a.name = "agent-" + strconv.FormatInt(a.id, 10)
	}
	s.agents[a.id] = a
	session := "bkaa_" + engine.RandomHex(24)
	s.tokens[session] = grant{agent: a}
	return newOK(map[string]any{
		"id": a.uuid, "name": a.name, "access_token": session, "endpoint": "", "ping_interval": 1,
		"job_status_interval": 1, "heartbeat_interval": 60, "meta_data": a.tags,
	})
}

func (s *Server) connect(c *call) response {
	c.grant.agent.isConnected = true
	return newOK(map[string]any{"id": c.grant.agent.uuid, "connection_state": "connected"})
}

func (s *Server) heartbeat(c *call) response {
	var body struct {
		SentAt     string `json:"sent_at"`
		ReceivedAt string `json:"received_at"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	return newOK(map[string]any{"sent_at": body.SentAt, "received_at": formatTime(c.now)})
}

func (s *Server) ping(*call) response { return newOK(map[string]any{}) }

func (s *Server) disconnect(c *call) response {
	a := c.grant.agent
	if a.job != nil {
		return newViolation(http.StatusUnprocessableEntity, "the agent disconnects while it has a job")
	}
	s.removeAgent(a)
	return newOK(map[string]any{"id": a.uuid, "connection_state": "disconnected"})
}

// acquireJob assigns a job to the agent. The job is then accepted. An agent that registered with a
// job acquisition token can acquire only the job of the token.
func (s *Server) acquireJob(c *call) response {
	a := c.grant.agent
	if c.r.Header.Get("X-Buildkite-Lock-Acquire-Job") != "1" {
		return newViolation(http.StatusUnprocessableEntity, "X-Buildkite-Lock-Acquire-Job is not 1")
	}
	if !a.isConnected {
		return newViolation(http.StatusUnprocessableEntity, "the agent is not connected")
	}
	j := s.jobs[c.r.PathValue("id")]
	switch {
	case j == nil:
		return newError(http.StatusNotFound, "No job found")
	case a.acquiredJob != nil && a.acquiredJob != j:
		return newViolation(http.StatusForbidden, "the agent's token is for another job")
	case j.state == stateBlocked:
		out := newError(http.StatusLocked, "Job is waiting for a dependency")
		out.retryAfter = 1
		return out
	case a.job != nil, j.state != stateScheduled && j.state != stateReserved, j.state == stateReserved && a.acquiredJob == nil:
		return newError(http.StatusUnprocessableEntity, "Job is not in a state where it can be acquired: "+j.state)
	}
	j.state, j.agent, a.job = stateAccepted, a, j
	j.ranOn = agentRecord{a.id, a.uuid, a.name}
	token := "bkaj_" + engine.RandomHex(24)
	s.tokens[token] = grant{job: j}
	return newOK(map[string]any{
		"id": j.uuid, "endpoint": "", "state": stateAccepted, "env": s.newEnvironment(j), "step": map[string]any{"command": j.script()},
		"chunks_max_size_bytes": 100 << 10, "chunks_interval_seconds": 1, "log_max_size_bytes": maxLog, "token": token,
		"runnable_at": formatTime(j.runnableAt), "priority": 0,
	})
}

// newEnvironment returns a part of the environment of the job's command.
func (s *Server) newEnvironment(j *job) map[string]string {
	return map[string]string{
		"BUILDKITE": "true", "CI": "true", "BUILDKITE_REPO": s.repositoryURL(j.build.pipeline), "BUILDKITE_PIPELINE_PROVIDER": "git",
		"BUILDKITE_PIPELINE_DEFAULT_BRANCH": "main", "BUILDKITE_PIPELINE_NAME": j.build.pipeline.slug,
		"BUILDKITE_AGENT_ID": j.ranOn.uuid, "BUILDKITE_AGENT_NAME": j.ranOn.name,
		"BUILDKITE_MESSAGE": "Build", "BUILDKITE_SOURCE": "api",
		"BUILDKITE_JOB_ID": j.uuid, "BUILDKITE_COMMAND": j.script(),
		"BUILDKITE_LABEL": j.name, "BUILDKITE_STEP_KEY": j.stepKey, "BUILDKITE_BRANCH": "main",
		"BUILDKITE_COMMIT": j.build.commit, "BUILDKITE_BUILD_ID": j.build.uuid,
		"BUILDKITE_BUILD_NUMBER": strconv.FormatInt(j.build.number, 10), "BUILDKITE_BUILD_URL": s.webURL(j.build),
		"BUILDKITE_ORGANIZATION_SLUG": s.opts.Organization, "BUILDKITE_PIPELINE_SLUG": j.build.pipeline.slug,
		"BUILDKITE_AGENT_META_DATA_QUEUE": j.queue.key,
	}
}

// repositoryURL returns the URL of the pipeline's repository.
func (s *Server) repositoryURL(p *pipeline) string {
	return cmp.Or(s.opts.Repository, "https://github.com/"+s.opts.Organization+"/"+p.slug+".git")
}

func (s *Server) startJob(c *call) response {
	var body struct {
		StartedAt string `json:"started_at"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	if _, err := time.Parse(time.RFC3339Nano, body.StartedAt); err != nil {
		return newViolation(http.StatusUnprocessableEntity, "started_at is not a time")
	}
	if c.job.state != stateAccepted {
		return newError(http.StatusUnprocessableEntity, "Job can't be started in state "+c.job.state)
	}
	c.job.state, c.job.startedAt = stateRunning, c.now
	s.queueWebhook(c.job, "job.started")
	return newOK(map[string]any{})
}

func (s *Server) getJobState(c *call) response { return newOK(map[string]any{"state": c.job.state}) }

// uploadChunk appends a compressed chunk to the log.
func (s *Server) uploadChunk(c *call) response {
	size, err := strconv.Atoi(c.r.URL.Query().Get("size"))
	if err != nil || c.r.Header.Get("Content-Encoding") != "gzip" {
		return newViolation(http.StatusUnprocessableEntity, "a chunk must have a size and be compressed with gzip")
	}
	var raw []byte
	unzip, err := gzip.NewReader(bytes.NewReader(c.body))
	if err == nil {
		raw, err = io.ReadAll(io.LimitReader(unzip, maxLog))
	}
	if err != nil || len(raw) != size {
		return newViolation(http.StatusUnprocessableEntity, "the chunk is not gzip or does not have the size of its parameter")
	}
	if c.job.state != stateRunning && c.job.state != stateCanceling {
		return newError(http.StatusUnprocessableEntity, "Job takes no log in state "+c.job.state)
	}
	c.job.log = append(c.job.log, raw[:min(len(raw), maxLog-len(c.job.log))]...)
	return newOK(map[string]any{})
}

func (s *Server) finishJob(c *call) response {
	var body struct {
		ExitStatus              string `json:"exit_status"`
		Signal                  string `json:"signal"`
		SignalReason            string `json:"signal_reason"`
		FinishedAt              string `json:"finished_at"`
		ChunksFailedCount       int    `json:"chunks_failed_count"`
		IgnoreAgentInDispatches *bool  `json:"ignore_agent_in_dispatches"`
	}
	if out := c.decodeBody(&body); out != nil {
		return *out
	}
	status, err := strconv.Atoi(body.ExitStatus)
	if _, timeErr := time.Parse(time.RFC3339Nano, body.FinishedAt); err != nil || timeErr != nil {
		return newViolation(http.StatusUnprocessableEntity, "exit_status or finished_at is missing")
	}
	state := stateFinished
	switch c.job.state {
	case stateRunning:
	case stateCanceling:
		state = stateCanceled
	default:
		return newError(http.StatusUnprocessableEntity, "Job can't be finished in state "+c.job.state)
	}
	s.endJob(c.job, state, status)
	return newOK(map[string]any{})
}
