// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Statuses of jobs, in GitLab's words.
const (
	statusCreated  = "created"
	statusManual   = "manual"
	statusPending  = "pending"
	statusRunning  = "running"
	statusSuccess  = "success"
	statusFailed   = "failed"
	statusCanceled = "canceled"
)

// maxJobs of one control request.
const maxJobs = 10000

// job is one job of a pipeline.
type job struct {
	id          int64
	pipeline    *pipeline
	name        string
	stage       string
	tags        []string
	environment string
	status      string
	failure     string
	duration    time.Duration
	command     string

	token   string // of the job, while it runs
	trace   []byte
	touched time.Time // when the runner last spoke of it
	ran     ranOn

	created, queued, started, finished time.Time
}

// ranOn remembers the runner of a job after the runner is gone.
type ranOn struct {
	id                int64
	description, kind string
	tags              []string
}

type pipeline struct {
	id      int64
	project *project
	name    string
	sha     string
	created time.Time
}

// Queue adds jobs, all of one pipeline, and returns them.
func (s *Server) Queue(spec control.JobSpec) ([]control.Job, error) {
	s.lock()
	defer s.core.Mu.Unlock()
	p := s.projectBy(spec.Repo)
	if p == nil {
		return nil, fmt.Errorf("queue jobs: no project %q", spec.Repo)
	}
	if slices.Contains(spec.Labels, "") {
		return nil, errors.New("queue jobs: a tag is empty")
	}
	if spec.Count < 0 || spec.Count > maxJobs || spec.Duration < 0 {
		return nil, fmt.Errorf("queue jobs: count must be 0 to %d and the duration not negative", maxJobs)
	}
	if spec.Name == "" {
		spec.Name = "build"
	}
	s.ids.pipeline++
	run := &pipeline{id: s.ids.pipeline, project: p, name: spec.Workflow, sha: engine.Hex(20), created: s.now()}
	p.active = s.now()
	var out []control.Job
	for i := range max(spec.Count, 1) {
		out = append(out, s.newJob(run, spec, i).control())
	}
	s.core.Kick()
	return out, nil
}

func (s *Server) newJob(run *pipeline, spec control.JobSpec, index int) *job {
	s.ids.job++
	name := spec.Name
	if spec.Count > 1 {
		name = fmt.Sprintf("%s %d/%d", spec.Name, index+1, spec.Count)
	}
	j := &job{
		id: s.ids.job, pipeline: run, name: name, stage: "test", tags: slices.Clone(spec.Labels), status: statusCreated,
		environment: spec.Environment, duration: spec.Duration, command: spec.Command, created: s.now(),
	}
	s.jobs[j.id] = j
	s.notify(j)
	if j.environment != "" {
		j.status = statusManual
		s.notify(j)
		return j
	}
	s.enqueue(j)
	return j
}

func (s *Server) enqueue(j *job) {
	j.status, j.queued = statusPending, s.now()
	s.queue = append(s.queue, j)
	s.notify(j)
	s.tick()
}

// Approve plays a manual job.
func (s *Server) Approve(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.status != statusManual {
		return fmt.Errorf("approve job %d: no such manual job", id)
	}
	s.enqueue(j)
	s.core.Kick()
	return nil
}

// Cancel ends a job that is not over. One that runs is over for GitLab at once; its
// runner hears of it when it next speaks of it.
func (s *Server) Cancel(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.over() {
		return fmt.Errorf("cancel job %d: no such unfinished job", id)
	}
	s.finish(j, statusCanceled, "")
	s.core.Kick()
	return nil
}

func (j *job) over() bool {
	return j.status == statusSuccess || j.status == statusFailed || j.status == statusCanceled
}

// advance applies every deadline that has passed. The lock is held.
func (s *Server) advance(now time.Time) {
	for _, j := range slices.Clone(s.queue) {
		if now.Sub(j.queued) >= s.opts.PendingFor {
			s.finish(j, statusFailed, "stuck_or_timeout_failure")
		}
	}
	for _, j := range s.jobs {
		switch {
		case j.status != statusRunning:
		case now.Sub(j.touched) >= s.opts.LostTimeout:
			s.finish(j, statusFailed, "stuck_or_timeout_failure")
		case now.Sub(j.started) >= s.timeout(j):
			s.finish(j, statusFailed, "job_execution_timeout")
		}
	}
}

// timeout is the project's, or the runner's if that is less.
func (s *Server) timeout(j *job) time.Duration {
	if r := s.runners[j.ran.id]; r != nil && r.maximum > 0 {
		return min(s.opts.JobTimeout, time.Duration(r.maximum)*time.Second)
	}
	return s.opts.JobTimeout
}

// nextDeadline is when advance has something to do; false when nothing is due.
func (s *Server) nextDeadline() (time.Time, bool) {
	var next time.Time
	consider := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	for _, j := range s.queue {
		consider(j.queued.Add(s.opts.PendingFor))
	}
	for _, j := range s.jobs {
		if j.status == statusRunning {
			consider(j.touched.Add(s.opts.LostTimeout))
			consider(j.started.Add(s.timeout(j)))
		}
	}
	return next, !next.IsZero()
}

// due says how long nothing changes by itself.
func (s *Server) due() time.Duration {
	s.lock()
	defer s.core.Mu.Unlock()
	next, due := s.nextDeadline()
	if !due {
		return engine.Idle
	}
	return next.Sub(s.now())
}

// start gives a pending job to a runner.
func (s *Server) start(j *job, r *runner) {
	s.queue = slices.DeleteFunc(s.queue, func(other *job) bool { return other == j })
	j.status, j.started, j.touched, j.token = statusRunning, s.now(), s.now(), secret("glcbt-64_")
	j.ran = ranOn{id: r.id, description: r.description, kind: r.kind, tags: r.tags}
	r.running = j
	s.notify(j)
}

func (s *Server) finish(j *job, status, failure string) {
	s.queue = slices.DeleteFunc(s.queue, func(other *job) bool { return other == j })
	j.status, j.failure, j.finished = status, failure, s.now()
	if r := s.runners[j.ran.id]; r != nil && r.running == j {
		r.running = nil
	}
	s.notify(j)
}

// next gives the oldest pending job that a runner takes.
func (s *Server) next(r *runner) *job {
	for _, j := range s.queue {
		if r.takes(j) {
			return j
		}
	}
	return nil
}

func seconds(from, to time.Time) any {
	if from.IsZero() || to.IsZero() {
		return nil
	}
	return to.Sub(from).Seconds()
}

// queuedFor is how long a job waited for its runner, until now if it still waits.
func (s *Server) queuedFor(j *job) any {
	if j.queued.IsZero() || j.started.IsZero() && j.over() {
		return nil
	}
	if j.started.IsZero() {
		return seconds(j.queued, s.now())
	}
	return seconds(j.queued, j.started)
}

// jobJSON is a job as the API tells it.
func (s *Server) jobJSON(j *job) map[string]any {
	p := j.pipeline
	out := map[string]any{
		"id": j.id, "status": j.status, "stage": j.stage, "name": j.name, "ref": "main", "tag": false, "coverage": nil,
		"allow_failure": false, "created_at": stamp(j.created), "started_at": stamp(j.started), "finished_at": stamp(j.finished),
		"erased_at": nil, "duration": seconds(j.started, j.finished), "queued_duration": s.queuedFor(j), "archived": false,
		"user":     map[string]any{"id": 3, "username": "hyperfleet", "name": "HyperFleet"},
		"pipeline": map[string]any{"id": p.id, "project_id": p.project.id, "ref": "main", "sha": p.sha, "status": "running"},
		"web_url":  fmt.Sprintf("%s/%s/-/jobs/%d", s.base, p.project.path, j.id), "artifacts": []any{},
		"tag_list": append([]string{}, j.tags...), "runner": nil, "artifacts_expire_at": nil, "runner_manager": nil,
	}
	if j.failure != "" {
		out["failure_reason"] = j.failure
	}
	if j.ran.id != 0 {
		out["runner"] = map[string]any{
			"id": j.ran.id, "description": j.ran.description, "ip_address": nil, "active": true, "paused": false,
			"is_shared": j.ran.kind == typeInstance, "runner_type": j.ran.kind, "name": "gitlab-runner", "online": true,
			"status": "online",
		}
	}
	return out
}

// control is a job in the words that all forges have in common.
func (j *job) control() control.Job {
	status := map[string]string{
		statusCreated: "waiting", statusManual: "waiting", statusPending: "queued", statusRunning: "in_progress",
	}[j.status]
	conclusion := ""
	if status == "" {
		status = "completed"
		conclusion = map[string]string{statusSuccess: "success", statusFailed: "failure", statusCanceled: "cancelled"}[j.status]
	}
	return control.Job{
		ID: j.id, RunID: j.pipeline.id, Repo: j.pipeline.project.path, Name: j.name, Labels: slices.Clone(j.tags),
		Status: status, Conclusion: conclusion, Environment: j.environment, RunnerID: j.ran.id, RunnerName: j.ran.description,
		QueuedAt: j.queued, StartedAt: j.started, CompletedAt: j.finished,
	}
}

// Trace gives what a job's runner has sent of its log.
func (s *Server) Trace(id int64) string {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if j := s.jobs[id]; j != nil {
		return string(j.trace)
	}
	return ""
}

// State returns a snapshot.
func (s *Server) State() control.State {
	s.lock()
	defer s.core.Mu.Unlock()
	state := s.core.Snapshot()
	state.Registered, state.MachineCalls = s.registered, slices.Sorted(maps.Keys(runnerEndpoints()))
	state.Webhooks.Pending = s.outbox.Pending()
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		state.Jobs = append(state.Jobs, s.jobs[id].control())
	}
	for _, id := range slices.Sorted(maps.Keys(s.runners)) {
		r := s.runners[id]
		out := control.Runner{
			ID: r.id, Name: r.description, Scope: r.place(), Group: r.kind, Labels: append([]string{}, r.tags...),
			Online: s.status(r) == "online", Busy: r.running != nil,
		}
		if r.running != nil {
			out.JobID = r.running.id
		}
		state.Runners = append(state.Runners, out)
	}
	return state
}
