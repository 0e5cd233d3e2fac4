// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// Statuses and conclusions of jobs at GitHub.
const (
	statusQueued     = "queued"
	statusWaiting    = "waiting"
	statusInProgress = "in_progress"
	statusCompleted  = "completed"

	conclusionSuccess   = "success"
	conclusionFailure   = "failure"
	conclusionCancelled = "cancelled"
)

// Limits of GitHub. maxJobs is the limit of one control request.
const (
	maxMatrix          = 256
	maxJobs            = 10000
	ephemeralRetention = 24 * time.Hour      // an offline ephemeral runner is removed after a day
	runnerRetention    = 14 * 24 * time.Hour // any other offline runner is removed after two weeks
	deliveryRetention  = 3 * 24 * time.Hour
)

// job is one job of a workflow run.
type job struct {
	id              int64
	run             *workflowRun
	name            string
	labels          []string
	environment     string
	status          string
	conclusion      string
	duration        time.Duration
	command         string
	cancelRequested bool // the runner must stop the job

	runner     *runner // assigned or running; after completion, ranOn holds its data
	ranOn      runnerRecord
	assignedAt time.Time
	requeues   int
	set        *scaleSet // the set that the job is offered or assigned to
	offer      offer

	createdAt, startedAt, completedAt time.Time
}

// runnerRecord holds the data of the runner of a job after the runner is removed.
type runnerRecord struct {
	id, groupID     int64
	name, groupName string
}

type workflowRun struct {
	id        int64
	number    int64
	repo      *repository
	workflow  string
	headSHA   string
	createdAt time.Time
	updatedAt time.Time
	jobs      []*job
}

// summarize returns the status and the conclusion of a run from those of its jobs.
func (w *workflowRun) summarize() (status, conclusion string) {
	counts := map[string]int{}
	conclusion = conclusionSuccess
	for _, j := range w.jobs {
		counts[j.status]++
		if j.conclusion == conclusionFailure || (j.conclusion == conclusionCancelled && conclusion == conclusionSuccess) {
			conclusion = j.conclusion
		}
	}
	switch {
	case counts[statusCompleted] == len(w.jobs):
		return statusCompleted, conclusion
	case counts[statusInProgress] > 0 || counts[statusCompleted] > 0:
		return statusInProgress, ""
	case counts[statusQueued] > 0:
		return statusQueued, ""
	}
	return statusWaiting, ""
}

// Queue queues jobs and returns them.
func (s *Server) Queue(spec control.JobSpec) ([]control.Job, error) {
	s.lock()
	defer s.core.Mu.Unlock()
	repo := s.repos[strings.ToLower(spec.Repo)]
	if repo == nil {
		return nil, fmt.Errorf("queue jobs: there is no repository %q", spec.Repo)
	}
	if len(spec.Labels) == 0 || slices.Contains(spec.Labels, "") {
		return nil, errors.New("queue jobs: labels are empty")
	}
	if spec.Count < 0 || spec.Count > maxJobs || spec.Duration < 0 {
		return nil, fmt.Errorf("queue jobs: count must be 0 to %d and the duration not negative", maxJobs)
	}
	setJobDefaults(&spec)
	var out []control.Job
	var run *workflowRun
	for i := range spec.Count {
		if i%maxMatrix == 0 {
			run = s.newRun(repo, spec.Workflow)
		}
		out = append(out, s.newJob(run, spec, i).toControl())
	}
	s.advance(s.now())
	s.core.Wake()
	return out, nil
}

func setJobDefaults(spec *control.JobSpec) {
	spec.Count = max(spec.Count, 1)
	if spec.Name == "" {
		spec.Name = "build"
	}
	if spec.Workflow == "" {
		spec.Workflow = "CI"
	}
}

func (s *Server) newRun(repo *repository, workflow string) *workflowRun {
	s.ids.run++
	run := &workflowRun{
		id: s.ids.run, number: int64(len(s.runs) + 1), repo: repo, workflow: workflow,
		headSHA: engine.RandomHex(20), createdAt: s.now(), updatedAt: s.now(),
	}
	s.runs[run.id] = run
	return run
}

func (s *Server) newJob(run *workflowRun, spec control.JobSpec, index int) *job {
	s.ids.job++
	name := spec.Name
	if spec.Count > 1 {
		name = fmt.Sprintf("%s (%d)", spec.Name, index+1)
	}
	j := &job{
		id: s.ids.job, run: run, name: name, labels: slices.Clone(spec.Labels), status: statusQueued,
		environment: spec.Environment, duration: spec.Duration, command: spec.Command, createdAt: s.now(),
	}
	run.jobs = append(run.jobs, j)
	s.jobs[j.id] = j
	if j.environment != "" {
		j.status = statusWaiting
		s.queueWebhooks(j, statusWaiting)
		return j
	}
	s.enqueue(j)
	return j
}

func (s *Server) enqueue(j *job) {
	j.status = statusQueued
	s.queue = append(s.queue, j)
	s.queueWebhooks(j, statusQueued)
}

// Approve queues a waiting job.
func (s *Server) Approve(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.status != statusWaiting {
		return fmt.Errorf("approve job %d: there is no such waiting job", id)
	}
	s.enqueue(j)
	s.advance(s.now())
	s.core.Wake()
	return nil
}

// Cancel cancels a job that is not completed. If the job runs, its runner stops it.
func (s *Server) Cancel(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	switch {
	case j == nil || j.status == statusCompleted:
		return fmt.Errorf("cancel job %d: there is no such unfinished job", id)
	case j.status == statusInProgress:
		j.cancelRequested = true
	default:
		s.completeJob(j, conclusionCancelled)
	}
	s.core.Wake()
	return nil
}

// advance applies every deadline that has passed, and then assigns jobs. The lock is held.
func (s *Server) advance(now time.Time) {
	for _, j := range slices.Clone(s.queue) {
		if j.runner != nil && now.Sub(j.assignedAt) >= s.opts.PickupTimeout {
			j.requeues++
			s.unassign(j)
		}
		if j.runner == nil && now.Sub(j.createdAt) >= s.opts.QueueTimeout {
			s.completeJob(j, conclusionFailure)
		}
	}
	for _, r := range s.runners {
		s.advanceRunner(r, now)
	}
	s.advanceScaleSets(now)
	s.dispatch(now)
}

func (s *Server) advanceRunner(r *runner, now time.Time) {
	silence := now.Sub(r.lastSeen)
	if r.openPolls > 0 {
		return
	}
	if r.isBusy() {
		if silence >= s.opts.LostTimeout {
			s.completeJob(r.job, conclusionFailure)
			s.finishRunner(r)
		}
		return
	}
	if r.session != "" && silence >= s.opts.OfflineAfter {
		r.session = ""
	}
	life := runnerRetention
	if r.ephemeral {
		life = ephemeralRetention
	}
	if silence >= life {
		s.unregisterRunner(r)
	}
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
		if j.runner != nil {
			consider(j.assignedAt.Add(s.opts.PickupTimeout))
		} else {
			consider(j.createdAt.Add(s.opts.QueueTimeout))
		}
	}
	s.considerScaleSetDeadlines(consider)
	for _, r := range s.runners {
		switch {
		case r.openPolls > 0:
		case r.isBusy():
			consider(r.lastSeen.Add(s.opts.LostTimeout))
		case r.session != "":
			consider(r.lastSeen.Add(s.opts.OfflineAfter))
		default:
			consider(r.lastSeen.Add(ephemeralRetention))
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

// dispatch assigns each queued job, oldest first, to a matching idle runner. The runner is chosen
// at random, because GitHub does not bind a job to a runner in advance.
func (s *Server) dispatch(now time.Time) {
	var idle []*runner
	for _, r := range s.runners {
		if r.job == nil && r.isOnline(now, s.opts.OfflineAfter) {
			idle = append(idle, r)
		}
	}
	slices.SortFunc(idle, func(a, b *runner) int { return int(a.id - b.id) })
	for _, j := range s.queue {
		if len(idle) == 0 {
			return
		}
		if j.runner != nil {
			continue
		}
		var candidates []int
		for i, r := range idle {
			if r.set == j.assignedSet() && s.canRun(r, j) {
				candidates = append(candidates, i)
			}
		}
		if len(candidates) == 0 {
			continue
		}
		index := candidates[s.core.Rand.IntN(len(candidates))]
		r := idle[index]
		idle = slices.Delete(idle, index, index+1)
		j.runner, j.assignedAt, r.job = r, now, j
		engine.Wake(r.wake)
	}
}

// canRun reports whether a runner may run a job. The runner must have all labels of the job (the
// case does not matter), and its group must allow the job's repository.
func (s *Server) canRun(r *runner, j *job) bool {
	repo := j.run.repo
	switch r.scope.kind {
	case scopeRepo:
		if !strings.EqualFold(r.scope.name, repo.fullName()) {
			return false
		}
	case scopeOrg:
		if !strings.EqualFold(r.scope.name, repo.owner.login) {
			return false
		}
	case scopeEnterprise:
		if repo.owner.user {
			return false
		}
	case scopeNone:
		return false
	}
	if !r.group.allows(repo) {
		return false
	}
	for _, required := range j.labels {
		if !slices.ContainsFunc(r.labels, func(l label) bool { return strings.EqualFold(l.name, required) }) {
			return false
		}
	}
	return true
}

func (s *Server) unassign(j *job) {
	if j.runner != nil {
		j.runner.job = nil
	}
	j.runner = nil
}

func (s *Server) startJob(j *job) {
	j.status, j.startedAt = statusInProgress, s.now()
	j.ranOn = runnerRecord{j.runner.id, j.runner.groupID(), j.runner.name, j.runner.groupName()}
	s.dequeue(j)
	s.queueWebhooks(j, statusInProgress)
	s.addStartedEvent(j)
}

func (s *Server) completeJob(j *job, conclusion string) {
	s.dequeue(j)
	s.unassign(j)
	j.status, j.conclusion, j.completedAt = statusCompleted, conclusion, s.now()
	if j.startedAt.IsZero() {
		j.startedAt = j.completedAt
	}
	s.queueWebhooks(j, statusCompleted)
	s.addCompletedEvent(j)
}

func (s *Server) dequeue(j *job) {
	s.queue = slices.DeleteFunc(s.queue, func(other *job) bool { return other == j })
}

// finishRunner releases a runner that has finished a job. It removes an ephemeral runner.
func (s *Server) finishRunner(r *runner) {
	r.job = nil
	if r.ephemeral {
		s.unregisterRunner(r)
	}
}

func (j *job) toControl() control.Job {
	return control.Job{
		ID: j.id, RunID: j.run.id, Repo: j.run.repo.fullName(), Name: j.name, Labels: slices.Clone(j.labels),
		Status: j.status, Conclusion: j.conclusion, Environment: j.environment,
		RunnerID: j.ranOn.id, RunnerName: j.ranOn.name, Requeues: j.requeues,
		QueuedAt: j.createdAt, StartedAt: j.startedAt, CompletedAt: j.completedAt,
	}
}

// State returns a snapshot of the simulator.
func (s *Server) State() control.State {
	s.lock()
	defer s.core.Mu.Unlock()
	state := s.core.Snapshot()
	state.Registered = s.registeredCount
	state.Webhooks.Pending = s.outbox.CountPending()
	for _, j := range s.jobs {
		state.Jobs = append(state.Jobs, j.toControl())
	}
	slices.SortFunc(state.Jobs, func(a, b control.Job) int { return int(a.ID - b.ID) })
	for _, r := range s.runners {
		state.Runners = append(state.Runners, s.newControlRunner(r))
	}
	slices.SortFunc(state.Runners, func(a, b control.Runner) int { return int(a.ID - b.ID) })
	return state
}

func (s *Server) newControlRunner(r *runner) control.Runner {
	out := control.Runner{
		ID: r.id, Name: r.name, Scope: s.scopePath(r.scope), Group: r.groupName(), Labels: []string{},
		Online: r.isOnline(s.now(), s.opts.OfflineAfter), Busy: r.isBusy(), Ephemeral: r.ephemeral, JIT: r.jit,
	}
	for _, l := range r.labels {
		out.Labels = append(out.Labels, l.name)
	}
	if r.job != nil {
		out.JobID = r.job.id
	}
	return out
}
