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

// Statuses of jobs at GitLab.
const (
	statusCreated  = "created"
	statusManual   = "manual"
	statusPending  = "pending"
	statusRunning  = "running"
	statusSuccess  = "success"
	statusFailed   = "failed"
	statusCanceled = "canceled"
)

// maxJobs is the maximum number of jobs of one control request.
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

	token     string // of the job while it runs
	trace     []byte
	touchedAt time.Time // last call of the runner for the job
	ranOn     runnerRecord

	createdAt, queuedAt, startedAt, finishedAt time.Time
}

// runnerRecord holds the data of the runner of a job after the runner is deleted.
type runnerRecord struct {
	id                int64
	description, kind string
	tags              []string
}

type pipeline struct {
	id        int64
	project   *project
	name      string
	sha       string
	createdAt time.Time
}

// Queue queues jobs of one new pipeline and returns them.
func (s *Server) Queue(spec control.JobSpec) ([]control.Job, error) {
	s.lock()
	defer s.core.Mu.Unlock()
	p := s.findProject(spec.Repo)
	if p == nil {
		return nil, fmt.Errorf("queue jobs: there is no project %q", spec.Repo)
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
	run := &pipeline{id: s.ids.pipeline, project: p, name: spec.Workflow, sha: engine.RandomHex(20), createdAt: s.now()}
	p.activeAt = s.now()
	var out []control.Job
	for i := range max(spec.Count, 1) {
		out = append(out, s.newJob(run, spec, i).toControl())
	}
	s.core.Wake()
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
		environment: spec.Environment, duration: spec.Duration, command: spec.Command, createdAt: s.now(),
	}
	s.jobs[j.id] = j
	s.queueWebhook(j)
	if j.environment != "" {
		j.status = statusManual
		s.queueWebhook(j)
		return j
	}
	s.enqueue(j)
	return j
}

func (s *Server) enqueue(j *job) {
	j.status, j.queuedAt = statusPending, s.now()
	s.queue = append(s.queue, j)
	s.queueWebhook(j)
	s.wakePolls()
}

// Approve plays a manual job.
func (s *Server) Approve(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.status != statusManual {
		return fmt.Errorf("approve job %d: there is no such manual job", id)
	}
	s.enqueue(j)
	s.core.Wake()
	return nil
}

// Cancel cancels a job that has not ended. For GitLab, a running job ends at once. Its runner
// learns of the cancellation with its next call for the job.
func (s *Server) Cancel(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.isFinished() {
		return fmt.Errorf("cancel job %d: there is no such unfinished job", id)
	}
	s.finishJob(j, statusCanceled, "")
	s.core.Wake()
	return nil
}

func (j *job) isFinished() bool {
	return j.status == statusSuccess || j.status == statusFailed || j.status == statusCanceled
}

// advance applies every deadline that has passed. The lock is held.
func (s *Server) advance(now time.Time) {
	for _, j := range slices.Clone(s.queue) {
		if now.Sub(j.queuedAt) >= s.opts.PendingTimeout {
			s.finishJob(j, statusFailed, "stuck_or_timeout_failure")
		}
	}
	for _, j := range s.jobs {
		switch {
		case j.status != statusRunning:
		case now.Sub(j.touchedAt) >= s.opts.LostTimeout:
			s.finishJob(j, statusFailed, "stuck_or_timeout_failure")
		case now.Sub(j.startedAt) >= s.timeout(j):
			s.finishJob(j, statusFailed, "job_execution_timeout")
		}
	}
}

// timeout returns the timeout of the project, or the timeout of the runner if it is shorter.
func (s *Server) timeout(j *job) time.Duration {
	if r := s.runners[j.ranOn.id]; r != nil && r.maxTimeout > 0 {
		return min(s.opts.JobTimeout, time.Duration(r.maxTimeout)*time.Second)
	}
	return s.opts.JobTimeout
}

// findNextDeadline returns the time at which advance has something to do, and false if there is
// none.
func (s *Server) findNextDeadline() (time.Time, bool) {
	var next time.Time
	consider := func(deadline time.Time) {
		if next.IsZero() || deadline.Before(next) {
			next = deadline
		}
	}
	for _, j := range s.queue {
		consider(j.queuedAt.Add(s.opts.PendingTimeout))
	}
	for _, j := range s.jobs {
		if j.status == statusRunning {
			consider(j.touchedAt.Add(s.opts.LostTimeout))
			consider(j.startedAt.Add(s.timeout(j)))
		}
	}
	return next, !next.IsZero()
}

// computeDelay returns the time until the next deadline.
func (s *Server) computeDelay() time.Duration {
	s.lock()
	defer s.core.Mu.Unlock()
	next, ok := s.findNextDeadline()
	if !ok {
		return engine.IdleDelay
	}
	return next.Sub(s.now())
}

// startJob assigns a pending job to a runner.
func (s *Server) startJob(j *job, r *runner) {
	s.dequeue(j)
	j.status, j.startedAt, j.touchedAt, j.token = statusRunning, s.now(), s.now(), newToken("glcbt-64_")
	j.ranOn = runnerRecord{id: r.id, description: r.description, kind: r.kind, tags: r.tags}
	r.job = j
	s.queueWebhook(j)
}

func (s *Server) dequeue(j *job) {
	s.queue = slices.DeleteFunc(s.queue, func(other *job) bool { return other == j })
}

func (s *Server) finishJob(j *job, status, failure string) {
	s.dequeue(j)
	j.status, j.failure, j.finishedAt = status, failure, s.now()
	if r := s.runners[j.ranOn.id]; r != nil && r.job == j {
		r.job = nil
	}
	s.queueWebhook(j)
}

// findJobFor returns the oldest pending job that a runner may run, or nil.
func (s *Server) findJobFor(r *runner) *job {
	for _, j := range s.queue {
		if r.canRun(j) {
			return j
		}
	}
	return nil
}

func durationSeconds(start, end time.Time) any {
	if start.IsZero() || end.IsZero() {
		return nil
	}
	return end.Sub(start).Seconds()
}

// queuedDuration returns how long a job waited for its runner. For a job that still waits, it
// returns the time until now.
func (s *Server) queuedDuration(j *job) any {
	if j.queuedAt.IsZero() || j.startedAt.IsZero() && j.isFinished() {
		return nil
	}
	if j.startedAt.IsZero() {
		return durationSeconds(j.queuedAt, s.now())
	}
	return durationSeconds(j.queuedAt, j.startedAt)
}

// encodeJob returns a job as the API represents it.
func (s *Server) encodeJob(j *job) map[string]any {
	p := j.pipeline
	out := map[string]any{
		"id": j.id, "status": j.status, "stage": j.stage, "name": j.name, "ref": "main", "tag": false, "coverage": nil,
		"allow_failure": false, "created_at": formatTime(j.createdAt), "started_at": formatTime(j.startedAt),
		"finished_at": formatTime(j.finishedAt), "erased_at": nil, "duration": durationSeconds(j.startedAt, j.finishedAt),
		"queued_duration": s.queuedDuration(j), "archived": false,
		"user":     map[string]any{"id": 3, "username": "hyperfleet", "name": "HyperFleet"},
		"pipeline": map[string]any{"id": p.id, "project_id": p.project.id, "ref": "main", "sha": p.sha, "status": "running"},
		"web_url":  fmt.Sprintf("%s/%s/-/jobs/%d", s.baseURL, p.project.path, j.id), "artifacts": []any{},
		"tag_list": append([]string{}, j.tags...), "runner": nil, "artifacts_expire_at": nil, "runner_manager": nil,
	}
	if j.failure != "" {
		out["failure_reason"] = j.failure
	}
	if j.ranOn.id != 0 {
		out["runner"] = map[string]any{
			"id": j.ranOn.id, "description": j.ranOn.description, "ip_address": nil, "active": true, "paused": false,
			"is_shared": j.ranOn.kind == typeInstance, "runner_type": j.ranOn.kind, "name": "gitlab-runner", "online": true,
			"status": "online",
		}
	}
	return out
}

// toControl returns the job in the common format of all simulators.
func (j *job) toControl() control.Job {
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
		Status: status, Conclusion: conclusion, Environment: j.environment, RunnerID: j.ranOn.id, RunnerName: j.ranOn.description,
		QueuedAt: j.queuedAt, StartedAt: j.startedAt, CompletedAt: j.finishedAt,
	}
}

// Trace returns the part of a job's log that its runner has sent.
func (s *Server) Trace(id int64) string {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if j := s.jobs[id]; j != nil {
		return string(j.trace)
	}
	return ""
}

// State returns a snapshot of the simulator.
func (s *Server) State() control.State {
	s.lock()
	defer s.core.Mu.Unlock()
	state := s.core.Snapshot()
	state.Registered, state.MachineCalls = s.registeredCount, slices.Sorted(maps.Keys(newRunnerEndpoints()))
	state.Webhooks.Pending = s.outbox.CountPending()
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		state.Jobs = append(state.Jobs, s.jobs[id].toControl())
	}
	for _, id := range slices.Sorted(maps.Keys(s.runners)) {
		r := s.runners[id]
		out := control.Runner{
			ID: r.id, Name: r.description, Scope: r.ownerPath(), Group: r.kind, Labels: append([]string{}, r.tags...),
			Online: s.runnerStatus(r) == "online", Busy: r.job != nil,
		}
		if r.job != nil {
			out.JobID = r.job.id
		}
		state.Runners = append(state.Runners, out)
	}
	return state
}
