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

// Statuses and conclusions of jobs, in GitHub's words.
const (
	statusQueued     = "queued"
	statusWaiting    = "waiting"
	statusInProgress = "in_progress"
	statusCompleted  = "completed"

	conclusionSuccess   = "success"
	conclusionFailure   = "failure"
	conclusionCancelled = "cancelled"
)

// Limits of GitHub, and of one control request.
const (
	maxMatrix     = 256
	maxJobs       = 10000
	ephemeralLife = 24 * time.Hour      // offline ephemeral runners are removed after a day
	runnerLife    = 14 * 24 * time.Hour // others after two weeks
	deliveryLife  = 3 * 24 * time.Hour
)

// job is one job of a workflow run.
type job struct {
	id          int64
	run         *workflowRun
	name        string
	labels      []string
	environment string
	status      string
	conclusion  string
	duration    time.Duration
	command     string
	cancel      bool // the runner should stop it

	runner     *runner // assigned or running; kept after completion in ran
	ran        ranOn
	assignedAt time.Time
	requeues   int
	set        *scaleSet // that the job is offered or assigned to
	offer      offer

	created, started, completed time.Time
}

// ranOn remembers the runner of a job after the runner is gone.
type ranOn struct {
	id, groupID     int64
	name, groupName string
}

type workflowRun struct {
	id       int64
	number   int64
	repo     *repository
	workflow string
	headSHA  string
	created  time.Time
	updated  time.Time
	jobs     []*job
}

// status sums up the jobs of a run.
func (w *workflowRun) status() (status, conclusion string) {
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

// Queue adds jobs and returns them.
func (s *Server) Queue(spec control.JobSpec) ([]control.Job, error) {
	s.lock()
	defer s.core.Mu.Unlock()
	repo := s.repos[strings.ToLower(spec.Repo)]
	if repo == nil {
		return nil, fmt.Errorf("queue jobs: no repository %q", spec.Repo)
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
		out = append(out, s.newJob(run, spec, i).control())
	}
	s.advance(s.now())
	s.core.Kick()
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
		headSHA: engine.Hex(20), created: s.now(), updated: s.now(),
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
		environment: spec.Environment, duration: spec.Duration, command: spec.Command, created: s.now(),
	}
	run.jobs = append(run.jobs, j)
	s.jobs[j.id] = j
	if j.environment != "" {
		j.status = statusWaiting
		s.notify(j, statusWaiting)
		return j
	}
	s.enqueue(j)
	return j
}

func (s *Server) enqueue(j *job) {
	j.status = statusQueued
	s.queue = append(s.queue, j)
	s.notify(j, statusQueued)
}

// Approve lets a waiting job into the queue.
func (s *Server) Approve(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.status != statusWaiting {
		return fmt.Errorf("approve job %d: no such waiting job", id)
	}
	s.enqueue(j)
	s.advance(s.now())
	s.core.Kick()
	return nil
}

// Cancel ends a job that is not completed. One that runs is stopped by its runner.
func (s *Server) Cancel(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	switch {
	case j == nil || j.status == statusCompleted:
		return fmt.Errorf("cancel job %d: no such unfinished job", id)
	case j.status == statusInProgress:
		j.cancel = true
	default:
		s.complete(j, conclusionCancelled)
	}
	s.core.Kick()
	return nil
}

// advance applies every deadline that has passed, then hands out jobs. The lock is held.
func (s *Server) advance(now time.Time) {
	for _, j := range slices.Clone(s.queue) {
		if j.runner != nil && now.Sub(j.assignedAt) >= s.opts.PickupTimeout {
			j.requeues++
			s.unassign(j)
		}
		if j.runner == nil && now.Sub(j.created) >= s.opts.QueueTimeout {
			s.complete(j, conclusionFailure)
		}
	}
	for _, r := range s.runners {
		s.advanceRunner(r, now)
	}
	s.advanceScaleSets(now)
	s.dispatch(now)
}

func (s *Server) advanceRunner(r *runner, now time.Time) {
	silent := now.Sub(r.lastSeen)
	if r.polls > 0 {
		return
	}
	if r.busy() {
		if silent >= s.opts.LostTimeout {
			s.complete(r.job, conclusionFailure)
			s.runnerDone(r)
		}
		return
	}
	if r.session != "" && silent >= s.opts.OfflineAfter {
		r.session = ""
	}
	life := runnerLife
	if r.ephemeral {
		life = ephemeralLife
	}
	if silent >= life {
		s.removeRunner(r)
	}
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
		if j.runner != nil {
			consider(j.assignedAt.Add(s.opts.PickupTimeout))
		} else {
			consider(j.created.Add(s.opts.QueueTimeout))
		}
	}
	s.nextSetDeadline(consider)
	for _, r := range s.runners {
		switch {
		case r.polls > 0:
		case r.busy():
			consider(r.lastSeen.Add(s.opts.LostTimeout))
		case r.session != "":
			consider(r.lastSeen.Add(s.opts.OfflineAfter))
		default:
			consider(r.lastSeen.Add(ephemeralLife))
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

// dispatch offers each queued job, oldest first, to a matching idle runner. Which
// one is drawn by lot: GitHub binds no job to a runner beforehand.
func (s *Server) dispatch(now time.Time) {
	var idle []*runner
	for _, r := range s.runners {
		if r.job == nil && r.online(now, s.opts.OfflineAfter) {
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
		var fit []int
		for i, r := range idle {
			if r.set == j.assignedSet() && s.fits(r, j) {
				fit = append(fit, i)
			}
		}
		if len(fit) == 0 {
			continue
		}
		at := fit[s.core.Rand.IntN(len(fit))]
		r := idle[at]
		idle = slices.Delete(idle, at, at+1)
		j.runner, j.assignedAt, r.job = r, now, j
		engine.Poke(r.wake)
	}
}

// fits: the runner carries all labels, whatever their case, and its group
// lets the job's repository in.
func (s *Server) fits(r *runner, j *job) bool {
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
	for _, want := range j.labels {
		if !slices.ContainsFunc(r.labels, func(l label) bool { return strings.EqualFold(l.name, want) }) {
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

func (s *Server) start(j *job) {
	j.status, j.started = statusInProgress, s.now()
	j.ran = ranOn{j.runner.id, j.runner.groupID(), j.runner.name, j.runner.groupName()}
	s.dequeue(j)
	s.notify(j, statusInProgress)
	s.tellStarted(j)
}

func (s *Server) complete(j *job, conclusion string) {
	s.dequeue(j)
	s.unassign(j)
	j.status, j.conclusion, j.completed = statusCompleted, conclusion, s.now()
	if j.started.IsZero() {
		j.started = j.completed
	}
	s.notify(j, statusCompleted)
	s.tellCompleted(j)
}

func (s *Server) dequeue(j *job) {
	s.queue = slices.DeleteFunc(s.queue, func(other *job) bool { return other == j })
}

// runnerDone is called when a runner has finished a job: ephemeral ones are removed.
func (s *Server) runnerDone(r *runner) {
	r.job = nil
	if r.ephemeral {
		s.removeRunner(r)
	}
}

func (j *job) control() control.Job {
	return control.Job{
		ID: j.id, RunID: j.run.id, Repo: j.run.repo.fullName(), Name: j.name, Labels: slices.Clone(j.labels),
		Status: j.status, Conclusion: j.conclusion, Environment: j.environment,
		RunnerID: j.ran.id, RunnerName: j.ran.name, Requeues: j.requeues,
		QueuedAt: j.created, StartedAt: j.started, CompletedAt: j.completed,
	}
}

// State returns a snapshot.
func (s *Server) State() control.State {
	s.lock()
	defer s.core.Mu.Unlock()
	state := s.core.Snapshot()
	state.Registered = s.registered
	state.Webhooks.Pending = s.outbox.Pending()
	for _, j := range s.jobs {
		state.Jobs = append(state.Jobs, j.control())
	}
	slices.SortFunc(state.Jobs, func(a, b control.Job) int { return int(a.ID - b.ID) })
	for _, r := range s.runners {
		state.Runners = append(state.Runners, s.runnerState(r))
	}
	slices.SortFunc(state.Runners, func(a, b control.Runner) int { return int(a.ID - b.ID) })
	return state
}

func (s *Server) runnerState(r *runner) control.Runner {
	out := control.Runner{
		ID: r.id, Name: r.name, Scope: s.place(r.scope), Group: r.groupName(), Labels: []string{},
		Online: r.online(s.now(), s.opts.OfflineAfter), Busy: r.busy(), Ephemeral: r.ephemeral, JIT: r.jit,
	}
	for _, l := range r.labels {
		out.Labels = append(out.Labels, l.name)
	}
	if r.job != nil {
		out.JobID = r.job.id
	}
	return out
}
