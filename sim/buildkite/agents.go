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

// maxLog is how much of a job's log is kept.
const maxLog = 1 << 20

// agent is one registered agent.
type agent struct {
	id        int64
	uuid      string
	name      string
	tags      []string
	only      *job // of the job acquisition token that it registered with
	connected bool
	seen      time.Time
	job       *job
}

// forget ends an agent's session. The lock is held.
func (s *Server) forget(a *agent) {
	delete(s.agents, a.id)
	maps.DeleteFunc(s.tokens, func(_ string, g grant) bool { return g.agent == a })
}

func (s *Server) registerAgent(c *call) reply {
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
	if out := c.read(&body); out != nil {
		return *out
	}
	if s.core.Chance(s.core.Faults().RegistrationRefuse) {
		return fail(http.StatusUnauthorized, "Invalid access token")
	}
	for _, tag := range body.Tags {
		if key, is := strings.CutPrefix(tag, "queue="); is && s.queueOf(key) == nil {
			return fail(http.StatusUnprocessableEntity, fmt.Sprintf("Cluster queue %q does not exist in the cluster", key))
		}
	}
	s.lastAgent++
	s.registered++
	a := &agent{id: s.lastAgent, uuid: engine.UUID(), name: body.Name, tags: body.Tags, seen: c.now}
	if c.grant.acquire {
		a.only = c.grant.job
		if !body.IgnoreInDispatches {
			return breach(http.StatusUnprocessableEntity, "an agent with a job acquisition token takes no other jobs")
		}
	}
	if a.name == "" {
		a.name = "agent-" + strconv.FormatInt(a.id, 10)
	}
	s.agents[a.id] = a
	session := "bkaa_" + engine.Hex(24)
	s.tokens[session] = grant{agent: a}
	return ok(map[string]any{
		"id": a.uuid, "name": a.name, "access_token": session, "endpoint": "", "ping_interval": 1,
		"job_status_interval": 1, "heartbeat_interval": 60, "meta_data": a.tags,
	})
}

func (s *Server) connect(c *call) reply {
	c.grant.agent.connected = true
	return ok(map[string]any{"id": c.grant.agent.uuid, "connection_state": "connected"})
}

func (s *Server) heartbeat(c *call) reply {
	var body struct {
		SentAt     string `json:"sent_at"`
		ReceivedAt string `json:"received_at"`
	}
	if out := c.read(&body); out != nil {
		return *out
	}
	return ok(map[string]any{"sent_at": body.SentAt, "received_at": stamp(c.now)})
}

func (s *Server) ping(*call) reply { return ok(map[string]any{}) }

func (s *Server) disconnect(c *call) reply {
	a := c.grant.agent
	if a.job != nil {
		return breach(http.StatusUnprocessableEntity, "the agent disconnects and has a job")
	}
	s.forget(a)
	return ok(map[string]any{"id": a.uuid, "connection_state": "disconnected"})
}

// acquireJob gives the agent the job, accepted. An agent that registered with a job
// acquisition token gets its own job only.
func (s *Server) acquireJob(c *call) reply {
	a := c.grant.agent
	if c.r.Header.Get("X-Buildkite-Lock-Acquire-Job") != "1" {
		return breach(http.StatusUnprocessableEntity, "X-Buildkite-Lock-Acquire-Job is not 1")
	}
	if !a.connected {
		return breach(http.StatusUnprocessableEntity, "the agent is not connected")
	}
	j := s.jobs[c.r.PathValue("id")]
	switch {
	case j == nil:
		return fail(http.StatusNotFound, "No job found")
	case a.only != nil && a.only != j:
		return breach(http.StatusForbidden, "the agent's token is for another job")
	case j.state == stateBlocked:
		out := fail(http.StatusLocked, "Job is waiting for a dependency")
		out.after = 1
		return out
	case a.job != nil, j.state != stateScheduled && j.state != stateReserved, j.state == stateReserved && a.only == nil:
		return fail(http.StatusUnprocessableEntity, "Job is not in a state where it can be acquired: "+j.state)
	}
	j.state, j.agent, a.job = stateAccepted, a, j
	j.ran = ranOn{a.id, a.uuid, a.name}
	token := "bkaj_" + engine.Hex(24)
	s.tokens[token] = grant{job: j}
	return ok(map[string]any{
		"id": j.uuid, "endpoint": "", "state": stateAccepted, "env": s.env(j), "step": map[string]any{"command": j.script()},
		"chunks_max_size_bytes": 100 << 10, "chunks_interval_seconds": 1, "log_max_size_bytes": maxLog, "token": token,
		"runnable_at": stamp(j.runnable), "priority": 0,
	})
}

// env is the environment of the job's command, in part.
func (s *Server) env(j *job) map[string]string {
	return map[string]string{
		"BUILDKITE": "true", "CI": "true", "BUILDKITE_REPO": s.repository(j.build.pipeline), "BUILDKITE_PIPELINE_PROVIDER": "git",
		"BUILDKITE_PIPELINE_DEFAULT_BRANCH": "main", "BUILDKITE_PIPELINE_NAME": j.build.pipeline.slug,
		"BUILDKITE_AGENT_ID": j.ran.uuid, "BUILDKITE_AGENT_NAME": j.ran.name, "BUILDKITE_MESSAGE": "Build", "BUILDKITE_SOURCE": "api",
		"BUILDKITE_JOB_ID": j.uuid, "BUILDKITE_COMMAND": j.script(),
		"BUILDKITE_LABEL": j.name, "BUILDKITE_STEP_KEY": j.stepKey, "BUILDKITE_BRANCH": "main",
		"BUILDKITE_COMMIT": j.build.commit, "BUILDKITE_BUILD_ID": j.build.uuid,
		"BUILDKITE_BUILD_NUMBER": strconv.FormatInt(j.build.number, 10), "BUILDKITE_BUILD_URL": s.webURL(j.build),
		"BUILDKITE_ORGANIZATION_SLUG": s.opts.Organization, "BUILDKITE_PIPELINE_SLUG": j.build.pipeline.slug,
		"BUILDKITE_AGENT_META_DATA_QUEUE": j.queue.key,
	}
}

// repository is where the agent checks the pipeline's code out from.
func (s *Server) repository(p *pipeline) string {
	return cmp.Or(s.opts.Repository, "https://github.com/"+s.opts.Organization+"/"+p.slug+".git")
}

func (s *Server) startJob(c *call) reply {
	var body struct {
		StartedAt string `json:"started_at"`
	}
	if out := c.read(&body); out != nil {
		return *out
	}
	if _, err := time.Parse(time.RFC3339Nano, body.StartedAt); err != nil {
		return breach(http.StatusUnprocessableEntity, "started_at is not a time")
	}
	if c.job.state != stateAccepted {
		return fail(http.StatusUnprocessableEntity, "Job can't be started in state "+c.job.state)
	}
	c.job.state, c.job.started = stateRunning, c.now
	s.notify(c.job, "job.started")
	return ok(map[string]any{})
}

func (s *Server) jobState(c *call) reply { return ok(map[string]any{"state": c.job.state}) }

// chunks takes a piece of the log, compressed.
func (s *Server) chunks(c *call) reply {
	size, err := strconv.Atoi(c.r.URL.Query().Get("size"))
	if err != nil || c.r.Header.Get("Content-Encoding") != "gzip" {
		return breach(http.StatusUnprocessableEntity, "a chunk has a size and is compressed with gzip")
	}
	var raw []byte
	unzip, err := gzip.NewReader(bytes.NewReader(c.body))
	if err == nil {
		raw, err = io.ReadAll(io.LimitReader(unzip, maxLog))
	}
	if err != nil || len(raw) != size {
		return breach(http.StatusUnprocessableEntity, "the chunk is not what it says that it is")
	}
	if c.job.state != stateRunning && c.job.state != stateCanceling {
		return fail(http.StatusUnprocessableEntity, "Job takes no log in state "+c.job.state)
	}
	c.job.log = append(c.job.log, raw[:min(len(raw), maxLog-len(c.job.log))]...)
	return ok(map[string]any{})
}

func (s *Server) finishJob(c *call) reply {
	var body struct {
		ExitStatus              string `json:"exit_status"`
		Signal                  string `json:"signal"`
		SignalReason            string `json:"signal_reason"`
		FinishedAt              string `json:"finished_at"`
		ChunksFailedCount       int    `json:"chunks_failed_count"`
		IgnoreAgentInDispatches *bool  `json:"ignore_agent_in_dispatches"`
	}
	if out := c.read(&body); out != nil {
		return *out
	}
	exit, err := strconv.Atoi(body.ExitStatus)
	if _, timeErr := time.Parse(time.RFC3339Nano, body.FinishedAt); err != nil || timeErr != nil {
		return breach(http.StatusUnprocessableEntity, "exit_status or finished_at is missing")
	}
	state := stateFinished
	switch c.job.state {
	case stateRunning:
	case stateCanceling:
		state = stateCanceled
	default:
		return fail(http.StatusUnprocessableEntity, "Job can't be finished in state "+c.job.state)
	}
	s.end(c.job, state, exit)
	return ok(map[string]any{})
}
