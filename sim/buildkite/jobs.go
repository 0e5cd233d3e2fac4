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

// States of jobs in the Stacks API. Webhooks and the REST API have the states passed and failed
// instead of finished.
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

// job is the job of one command step.
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

	stack               string // the stack that has reserved the job
	reservedUntil       time.Time
	expiredReservations int
	notifications       int

	agent      *agent // the agent that has the job; after the end of the job, ranOn holds its data
	ranOn      agentRecord
	exitStatus int
	log        []byte

	createdAt, runnableAt, startedAt, finishedAt time.Time
}

// agentRecord holds the data of the agent of a job after the agent is removed.
type agentRecord struct {
	id         int64
	uuid, name string
}

type build struct {
	uuid      string
	number    int64
	pipeline  *pipeline
	workflow  string
	commit    string
	metadata  map[string]string
	createdAt time.Time
}

// isFinished reports whether the job has ended.
func (j *job) isFinished() bool { return j.state == stateFinished || j.state == stateCanceled }

// hasAgent reports whether an agent has the job.
func (j *job) hasAgent() bool {
	return j.state == stateAccepted || j.state == stateRunning || j.state == stateCanceling
}

// Queue queues jobs of one new build and returns them. The labels are agent query rules. A rule may
// name the queue.
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
	q := s.findQueue(key)
	if q == nil {
		return nil, fmt.Errorf("queue jobs: the cluster has no queue %q", key)
	}
	run := s.newBuild(slug, cmp.Or(spec.Workflow, "CI"))
	var out []control.Job
	for i := range max(spec.Count, 1) {
		out = append(out, s.newJob(run, q, spec, i).toControl())
	}
	s.core.Wake()
	return out, nil
}

func (s *Server) newBuild(slug, workflow string) *build {
	p := s.pipelines[slug]
	if p == nil {
		p = &pipeline{uuid: engine.NewUUID(), slug: slug, name: s.opts.Organization + "/" + slug}
		s.pipelines[slug] = p
	}
	p.buildCount++
	out := &build{
		uuid: engine.NewUUID(), number: p.buildCount, pipeline: p, workflow: workflow, commit: engine.RandomHex(20), createdAt: s.now(),
		metadata: map[string]string{},
	}
	if s.opts.Repository != "" {
		out.commit = "HEAD" // as in a build without a commit
	}
	return out
}

func (s *Server) newJob(run *build, q *queue, spec control.JobSpec, index int) *job {
	s.lastJob++
	name := cmp.Or(spec.Name, "build")
	key := strings.ReplaceAll(strings.ToLower(name), " ", "-")
	if spec.Count > 1 {
		name, key = fmt.Sprintf("%s (%d)", name, index+1), fmt.Sprintf("%s-%d", key, index+1)
	}
	j := &job{
		id:          s.lastJob,
		uuid:        engine.NewUUID(),
		build:       run,
		name:        name,
		stepKey:     key,
		rules:       append([]string{}, spec.Labels...),
		queue:       q,
		state:       stateScheduled,
		environment: spec.Environment,
		duration:    spec.Duration,
		command:     spec.Command,
		createdAt:   s.now(),
		runnableAt:  s.now(),
	}
	s.jobs[j.uuid] = j
	s.jobOrder = append(s.jobOrder, j)
	if j.environment != "" {
		j.state, j.runnableAt = stateBlocked, time.Time{}
		return j
	}
	s.queueWebhook(j, "job.scheduled")
	return j
}

func (s *Server) findJob(id int64) *job {
	index := slices.IndexFunc(s.jobOrder, func(j *job) bool { return j.id == id })
	if index < 0 {
		return nil
	}
	return s.jobOrder[index]
}

// Approve unblocks a job that waits for a block step.
func (s *Server) Approve(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.findJob(id)
	if j == nil || j.state != stateBlocked {
		return fmt.Errorf("approve job %d: there is no such blocked job", id)
	}
	s.queueWebhook(j, "job.activated")
	j.state, j.runnableAt = stateScheduled, s.now()
	s.queueWebhook(j, "job.scheduled")
	return nil
}

// Cancel cancels an unfinished job.
func (s *Server) Cancel(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.findJob(id)
	if j == nil || j.isFinished() {
		return fmt.Errorf("cancel job %d: there is no such unfinished job", id)
	}
	if j.hasAgent() {
		j.state = stateCanceling // the agent learns of the cancellation when it requests the state
		return nil
	}
	s.endJob(j, stateCanceled, -1)
	return nil
}

// endJob completes a job. The lock is held.
func (s *Server) endJob(j *job, state string, status int) {
	j.state, j.exitStatus, j.finishedAt = state, status, s.now()
	if j.agent != nil {
		j.agent.job = nil
		j.agent = nil
	}
	maps.DeleteFunc(s.tokens, func(_ string, g grant) bool { return g.job == j })
	s.queueWebhook(j, "job.finished")
}

// advance ends reservations that have expired, ends jobs whose agents made no calls for
// LostTimeout, and removes these agents. The lock is held.
func (s *Server) advance(now time.Time) {
	for _, j := range s.jobOrder {
		switch {
		case j.state == stateReserved && !now.Before(j.reservedUntil):
			j.state, j.stack = stateScheduled, ""
			j.expiredReservations++
		case j.hasAgent() && j.agent != nil && now.Sub(j.agent.lastSeen) >= s.opts.LostTimeout:
			lost := j.agent
			state := stateFinished
			if j.state == stateCanceling {
				state = stateCanceled
			}
			s.endJob(j, state, -1)
			s.removeAgent(lost)
		}
	}
	for _, a := range s.agents {
		if a.job == nil && now.Sub(a.lastSeen) >= s.opts.LostTimeout {
			s.removeAgent(a)
		}
	}
}

// computeDelay returns the time until the next deadline.
func (s *Server) computeDelay() time.Duration {
	s.lock()
	defer s.core.Mu.Unlock()
	wait := engine.IdleDelay
	for _, j := range s.jobOrder {
		switch {
		case j.state == stateReserved:
			wait = min(wait, j.reservedUntil.Sub(s.now()))
		case j.hasAgent() && j.agent != nil:
			wait = min(wait, j.agent.lastSeen.Add(s.opts.LostTimeout).Sub(s.now()))
		}
	}
	return wait
}

// restState returns the state of a job in webhooks.
func (j *job) restState() string {
	switch {
	case j.state != stateFinished:
		return j.state
	case j.exitStatus == 0:
		return "passed"
	default:
		return "failed"
	}
}

// toControl returns the job in the common format of all simulators.
func (j *job) toControl() control.Job {
	out := control.Job{
		ID: j.id, Key: j.uuid, RunID: j.build.number, Repo: j.build.pipeline.name, Name: j.name, Labels: slices.Clone(j.rules),
		Environment: j.environment, RunnerID: j.ranOn.id, RunnerName: j.ranOn.name, Requeues: j.expiredReservations,
		QueuedAt: j.createdAt, StartedAt: j.startedAt, CompletedAt: j.finishedAt,
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

// State returns a snapshot of the simulator.
func (s *Server) State() control.State {
	s.lock()
	defer s.core.Mu.Unlock()
	state := s.core.Snapshot()
	state.Registered, state.MachineCalls = s.registeredCount, agentCalls()
	state.Webhooks.Pending = s.outbox.CountPending()
	for _, j := range s.jobOrder {
		state.Jobs = append(state.Jobs, j.toControl())
	}
	for _, id := range slices.Sorted(maps.Keys(s.agents)) {
		a := s.agents[id]
		out := control.Runner{
			ID: a.id, Name: a.name, Scope: s.opts.Organization, Labels: slices.Clone(a.tags),
			Online: a.isConnected, Busy: a.job != nil, Ephemeral: true, JIT: a.acquiredJob != nil,
		}
		if a.job != nil {
			out.JobID = a.job.id
		}
		state.Runners = append(state.Runners, out)
	}
	return state
}

// JobLog returns the state of a job at Buildkite, and the log of its agent.
func (s *Server) JobLog(uuid string) (state, log string) {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[uuid]
	if j == nil {
		return "", ""
	}
	return j.state, string(j.log)
}

// script returns the command that the job's agent runs.
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
