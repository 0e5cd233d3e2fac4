// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// States of jobs, in the words of the Stacks API. Webhooks and the REST API say passed or
// failed for finished.
const (
	stateBlocked   = "blocked"
	stateScheduled = "scheduled"
	stateReserved  = "reserved"
	stateAccepted  = "accepted"
	stateRunning   = "running"
	stateCanceling = "canceling"
	stateCanceled  = "canceled"
	stateFinished  = "finished"
)

const maxJobs = 10000

// job is one command step's job.
type job struct {
	id          int64
	uuid        string
	build       *build
	name        string
	stepKey     string
	rules       []string
	queue       *queue
	state       string
	environment string
	duration    time.Duration
	command     string

	stack         string // that reserved it
	reservedUntil time.Time
	lapses        int
	notes         int

	agent *agent // that has it; kept in ran after it is over
	ran   ranOn
	exit  int
	log   []byte

	created, runnable, started, finished time.Time
}

// ranOn remembers the agent of a job after the agent is gone.
type ranOn struct {
	id         int64
	uuid, name string
}

type build struct {
	uuid     string
	number   int64
	pipeline *pipeline
	workflow string
	commit   string
	metadata map[string]string
	created  time.Time
}

// over says whether the job has ended.
func (j *job) over() bool { return j.state == stateFinished || j.state == stateCanceled }

// taken says whether an agent has the job.
func (j *job) taken() bool {
	return j.state == stateAccepted || j.state == stateRunning || j.state == stateCanceling
}

// Queue adds jobs and returns them. Labels are agent query rules; one of them may name
// the queue.
func (s *Server) Queue(spec control.JobSpec) ([]control.Job, error) {
	s.lock()
	defer s.core.Mu.Unlock()
	organization, slug, _ := strings.Cut(spec.Repo, "/")
	if organization != s.opts.Organization || slug == "" || strings.Contains(slug, "/") {
		return nil, fmt.Errorf("queue jobs: %q is not %s/PIPELINE", spec.Repo, s.opts.Organization)
	}
	if slices.Contains(spec.Labels, "") {
		return nil, errors.New("queue jobs: a label is empty")
	}
	if spec.Count < 0 || spec.Count > maxJobs || spec.Duration < 0 {
		return nil, fmt.Errorf("queue jobs: count must be 0 to %d and the duration not negative", maxJobs)
	}
	key := ""
	for _, rule := range spec.Labels {
		if value, ok := strings.CutPrefix(rule, "queue="); ok {
			key = value
		}
	}
	into := s.queueOf(key)
	if into == nil {
		return nil, fmt.Errorf("queue jobs: the cluster has no queue %q", key)
	}
	run := s.newBuild(slug, cmp.Or(spec.Workflow, "CI"))
	var out []control.Job
	for i := range max(spec.Count, 1) {
		out = append(out, s.newJob(run, into, spec, i).control())
	}
	s.core.Kick()
	return out, nil
}

func (s *Server) newBuild(slug, workflow string) *build {
	from := s.pipelines[slug]
	if from == nil {
		from = &pipeline{uuid: engine.UUID(), slug: slug, name: s.opts.Organization + "/" + slug}
		s.pipelines[slug] = from
	}
	from.builds++
	out := &build{
		uuid: engine.UUID(), number: from.builds, pipeline: from, workflow: workflow, commit: engine.Hex(20), created: s.now(),
		metadata: map[string]string{},
	}
	if s.opts.Repository != "" {
		out.commit = "HEAD" // of a build that no commit was named for
	}
	return out
}

func (s *Server) newJob(run *build, into *queue, spec control.JobSpec, index int) *job {
	s.lastJob++
	name := cmp.Or(spec.Name, "build")
	key := strings.ReplaceAll(strings.ToLower(name), " ", "-")
	if spec.Count > 1 {
		name, key = fmt.Sprintf("%s (%d)", name, index+1), fmt.Sprintf("%s-%d", key, index+1)
	}
	j := &job{
		id:          s.lastJob,
		uuid:        engine.UUID(),
		build:       run,
		name:        name,
		stepKey:     key,
		rules:       append([]string{}, spec.Labels...),
		queue:       into,
		state:       stateScheduled,
		environment: spec.Environment,
		duration:    spec.Duration,
		command:     spec.Command,
		created:     s.now(),
		runnable:    s.now(),
	}
	s.jobs[j.uuid] = j
	s.order = append(s.order, j)
	if j.environment != "" {
		j.state, j.runnable = stateBlocked, time.Time{}
		return j
	}
	s.notify(j, "job.scheduled")
	return j
}

func (s *Server) jobByID(id int64) *job {
	at := slices.IndexFunc(s.order, func(j *job) bool { return j.id == id })
	if at < 0 {
		return nil
	}
	return s.order[at]
}

// Approve unblocks a job that waits for a block step.
func (s *Server) Approve(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobByID(id)
	if j == nil || j.state != stateBlocked {
		return fmt.Errorf("approve job %d: no such job is blocked", id)
	}
	s.notify(j, "job.activated")
	j.state, j.runnable = stateScheduled, s.now()
	s.notify(j, "job.scheduled")
	return nil
}

// Cancel cancels an unfinished job.
func (s *Server) Cancel(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobByID(id)
	if j == nil || j.over() {
		return fmt.Errorf("cancel job %d: no such job is unfinished", id)
	}
	if j.taken() {
		j.state = stateCanceling // the agent hears of it
		return nil
	}
	s.end(j, stateCanceled, -1)
	return nil
}

// end completes a job. The lock is held.
func (s *Server) end(j *job, state string, exit int) {
	j.state, j.exit, j.finished = state, exit, s.now()
	if j.agent != nil {
		j.agent.job = nil
		j.agent = nil
	}
	maps.DeleteFunc(s.tokens, func(_ string, g grant) bool { return g.job == j })
	s.notify(j, "job.finished")
}

// advance lets reservations lapse and loses jobs whose agents are silent. The lock is
// held.
func (s *Server) advance(now time.Time) {
	for _, j := range s.order {
		switch {
		case j.state == stateReserved && !now.Before(j.reservedUntil):
			j.state, j.stack = stateScheduled, ""
			j.lapses++
		case j.taken() && j.agent != nil && now.Sub(j.agent.seen) >= s.opts.LostTimeout:
			lost := j.agent
			state := stateFinished
			if j.state == stateCanceling {
				state = stateCanceled
			}
			s.end(j, state, -1)
			s.forget(lost)
		}
	}
	for _, a := range s.agents {
		if a.job == nil && now.Sub(a.seen) >= s.opts.LostTimeout {
			s.forget(a)
		}
	}
}

// due says how long nothing changes by itself.
func (s *Server) due() time.Duration {
	s.lock()
	defer s.core.Mu.Unlock()
	wait := engine.Idle
	for _, j := range s.order {
		switch {
		case j.state == stateReserved:
			wait = min(wait, j.reservedUntil.Sub(s.now()))
		case j.taken() && j.agent != nil:
			wait = min(wait, j.agent.seen.Add(s.opts.LostTimeout).Sub(s.now()))
		}
	}
	return wait
}

// restState is how webhooks name the state of a job that has ended.
func (j *job) restState() string {
	switch {
	case j.state != stateFinished:
		return j.state
	case j.exit == 0:
		return "passed"
	default:
		return "failed"
	}
}

// control tells of the job in the words that all simulators share.
func (j *job) control() control.Job {
	out := control.Job{
		ID: j.id, Key: j.uuid, RunID: j.build.number, Repo: j.build.pipeline.name, Name: j.name, Labels: slices.Clone(j.rules),
		Environment: j.environment, RunnerID: j.ran.id, RunnerName: j.ran.name, Requeues: j.lapses,
		QueuedAt: j.created, StartedAt: j.started, CompletedAt: j.finished,
	}
	switch j.state {
	case stateBlocked:
		out.Status = "waiting"
	case stateScheduled, stateReserved:
		out.Status = "queued"
	case stateFinished, stateCanceled:
		out.Status = "completed"
		out.Conclusion = map[string]string{"passed": "success", "failed": "failure", stateCanceled: "cancelled"}[j.restState()]
	default:
		out.Status = "in_progress"
	}
	return out
}

// State returns a snapshot.
func (s *Server) State() control.State {
	s.lock()
	defer s.core.Mu.Unlock()
	state := s.core.Snapshot()
	state.Registered, state.MachineCalls = s.registered, agentCalls()
	state.Webhooks.Pending = s.outbox.Pending()
	for _, j := range s.order {
		state.Jobs = append(state.Jobs, j.control())
	}
	for _, id := range slices.Sorted(maps.Keys(s.agents)) {
		a := s.agents[id]
		out := control.Runner{
			ID: a.id, Name: a.name, Scope: s.opts.Organization, Labels: slices.Clone(a.tags),
			Online: a.connected, Busy: a.job != nil, Ephemeral: true, JIT: a.only != nil,
		}
		if a.job != nil {
			out.JobID = a.job.id
		}
		state.Runners = append(state.Runners, out)
	}
	return state
}

// Raw gives the state of a job in Buildkite's own word, and what its agent has logged.
func (s *Server) Raw(uuid string) (state, log string) {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[uuid]
	if j == nil {
		return "", ""
	}
	return j.state, string(j.log)
}

// script is what the job's agent runs.
func (j *job) script() string {
	switch {
	case j.command != "":
		return j.command
	case j.duration > 0:
		return "sleep " + strconv.FormatFloat(j.duration.Seconds(), 'f', 3, 64)
	default:
		return "true"
	}
}
