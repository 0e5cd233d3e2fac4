// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// States of a job, in Forgejo's words.
const (
	statusBlocked   = "blocked"
	statusWaiting   = "waiting"
	statusRunning   = "running"
	statusSuccess   = "success"
	statusFailure   = "failure"
	statusCancelled = "cancelled"
)

// maxJobs bounds how many jobs one call queues.
const maxJobs = 10000

type job struct {
	id, run     int64
	handle      string
	repo        *repository
	name        string
	labels      []string
	environment string
	status      string
	duration    time.Duration
	command     string
	task        int64
	log         []string
	// ran is the runner, which is kept when it is gone.
	ranID   int64
	ranName string

	created, started, stopped, touched time.Time
}

func (j *job) over() bool {
	return j.status == statusSuccess || j.status == statusFailure || j.status == statusCancelled
}

// giteaStatus is the state in Gitea's words (services/convert: ToActionsStatus).
func (j *job) giteaStatus() (status, conclusion string) {
	switch {
	case j.over():
		return "completed", j.status
	case j.status == statusRunning:
		return "in_progress", ""
	case j.status == statusWaiting:
		return "queued", ""
	default:
		return "waiting", ""
	}
}

func (j *job) control() control.Job {
	status, conclusion := j.giteaStatus()
	return control.Job{
		ID: j.id, Key: j.handle, RunID: j.run, Repo: j.repo.path, Name: j.name, Labels: slices.Clone(j.labels), Status: status,
		Conclusion: conclusion, Environment: j.environment, RunnerID: j.ranID, RunnerName: j.ranName,
		QueuedAt: j.created, StartedAt: j.started, CompletedAt: j.stopped,
	}
}

// Queue adds jobs, all of one run. A job with an environment is blocked until Approve.
func (s *Server) Queue(spec control.JobSpec) ([]control.Job, error) {
	s.lock()
	defer s.core.Mu.Unlock()
	repo := s.repositoryBy(spec.Repo)
	switch {
	case repo == nil:
		return nil, fmt.Errorf("queue jobs: no repository %q", spec.Repo)
	case slices.Contains(spec.Labels, ""):
		return nil, errors.New("queue jobs: a label is empty")
	case spec.Count < 0 || spec.Count > maxJobs || spec.Duration < 0:
		return nil, fmt.Errorf("queue jobs: count must be 0 to %d and the duration not negative", maxJobs)
	}
	if spec.Name == "" {
		spec.Name = "build"
	}
	s.ids.run++
	var out []control.Job
	for range max(spec.Count, 1) {
		s.ids.job++
		j := &job{
			id: s.ids.job, run: s.ids.run, handle: engine.UUID(), repo: repo, name: spec.Name, labels: slices.Clone(spec.Labels),
			environment: spec.Environment, status: statusWaiting, duration: spec.Duration, command: spec.Command, created: s.now(),
		}
		if j.environment != "" {
			j.status = statusBlocked
		}
		s.jobs[j.id] = j
		s.notify(j)
		out = append(out, j.control())
	}
	s.core.Kick()
	return out, nil
}

// Approve lets a blocked job into the queue.
func (s *Server) Approve(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.status != statusBlocked {
		return fmt.Errorf("approve job %d: no such blocked job", id)
	}
	j.status = statusWaiting
	s.notify(j)
	return nil
}

// Cancel ends a job that is not over. Its runner hears of it when it next speaks of it.
func (s *Server) Cancel(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.over() {
		return fmt.Errorf("cancel job %d: no such unfinished job", id)
	}
	s.finish(j, statusCancelled)
	return nil
}

// Log gives what a job's runner has sent of its log.
func (s *Server) Log(id int64) string {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if j := s.jobs[id]; j != nil {
		return strings.Join(j.log, "\n")
	}
	return ""
}

// start gives a waiting job to a runner.
func (s *Server) start(j *job, r *runner) {
	s.ids.task++
	j.status, j.task, j.started, j.touched, j.ranID, j.ranName = statusRunning, s.ids.task, s.now(), s.now(), r.id, r.name
	r.running, r.active, r.worked = j, s.now(), true
	s.notify(j)
}

// finish ends a job. An ephemeral runner goes with it.
func (s *Server) finish(j *job, status string) {
	j.status, j.stopped = status, s.now()
	if r := s.runners[j.ranID]; r != nil && r.running == j {
		r.running = nil
		if r.ephemeral {
			delete(s.runners, r.id)
		}
	}
	s.notify(j)
}

// advance applies every deadline that has passed. The lock is held.
func (s *Server) advance(now time.Time) {
	for _, j := range s.jobs {
		if j.status == statusRunning && now.Sub(j.touched) >= s.opts.LostTimeout {
			s.finish(j, statusFailure)
		}
	}
}

// due says how long nothing changes by itself.
func (s *Server) due() time.Duration {
	s.lock()
	defer s.core.Mu.Unlock()
	next := engine.Idle
	for _, j := range s.jobs {
		if j.status == statusRunning {
			next = min(next, j.touched.Add(s.opts.LostTimeout).Sub(s.now()))
		}
	}
	return next
}

// inOrder gives the jobs of a call's scope, oldest first.
func (s *Server) inOrder(c *call) []*job {
	var out []*job
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		j := s.jobs[id]
		if c.place == "" || strings.EqualFold(c.place, j.repo.path) || strings.EqualFold(c.place, j.repo.owner()) {
			out = append(out, j)
		}
	}
	return out
}

// stamp writes a time as the servers do: what is not yet is the year 1970.
func stamp(t time.Time) string {
	if t.IsZero() {
		t = time.Unix(0, 0)
	}
	return t.UTC().Format(time.RFC3339)
}

// giteaJSON is a job as Gitea tells it.
func (s *Server) giteaJSON(j *job) map[string]any {
	status, conclusion := j.giteaStatus()
	out := map[string]any{
		"id": j.id, "url": fmt.Sprintf("%s/api/v1/repos/%s/actions/jobs/%d", s.base, j.repo.path, j.id),
		"html_url": fmt.Sprintf("%s/%s/actions/runs/%d/jobs/%d", s.base, j.repo.path, j.run, j.id), "run_id": j.run,
		"run_url": fmt.Sprintf("%s/api/v1/repos/%s/actions/runs/%d", s.base, j.repo.path, j.run), "name": j.name,
		"labels": append([]string{}, j.labels...), "run_attempt": 1, "head_sha": strings.Repeat("a", 40), "head_branch": "main",
		"status": status, "steps": []any{},
		"created_at": stamp(j.created), "started_at": stamp(j.started), "completed_at": stamp(j.stopped),
	}
	if conclusion != "" {
		out["conclusion"] = conclusion
	}
	if j.ranID != 0 {
		out["runner_id"], out["runner_name"] = j.ranID, j.ranName
	}
	return out
}

func (s *Server) answerGiteaJobs(c *call) reply {
	wanted := c.r.URL.Query()["status"]
	known := []string{
		"pending", "waiting", "requested", "action_required", "queued", "in_progress", "completed", "failure", "success", "skipped",
		"neutral",
	}
	for _, status := range wanted {
		if !slices.Contains(known, status) {
			return fail(http.StatusBadRequest, "invalid status %s", status)
		}
	}
	var found []map[string]any
	for _, j := range s.inOrder(c) {
		status, conclusion := j.giteaStatus()
		if len(wanted) == 0 || slices.Contains(wanted, status) || slices.Contains(wanted, conclusion) {
			found = append(found, s.giteaJSON(j))
		}
	}
	return ok(map[string]any{"jobs": page(c, found), "total_count": len(found)})
}

func (s *Server) answerGiteaJob(c *call) reply {
	j := s.jobs[c.id()]
	if j == nil || j.repo != c.repo {
		return notFound()
	}
	return ok(s.giteaJSON(j))
}

// answerForgejoJobs lists the jobs that wait or run; with labels, those that they suffice
// for. A list without any is null.
func (s *Server) answerForgejoJobs(c *call) reply {
	var (
		out    []map[string]any
		labels []string
	)
	if given := c.r.URL.Query().Get("labels"); given != "" {
		labels = strings.Split(given, ",")
	}
	for _, j := range s.inOrder(c) {
		lacks := slices.ContainsFunc(j.labels, func(label string) bool { return !slices.Contains(labels, label) })
		if j.status != statusWaiting && j.status != statusRunning || len(labels) > 0 && lacks {
			continue
		}
		out = append(out, map[string]any{
			"id": j.id, "attempt": 1, "handle": j.handle, "repo_id": j.repo.id, "owner_id": 2, "name": j.name, "needs": nil,
			"runs_on": append([]string{}, j.labels...), "task_id": j.task, "status": j.status,
		})
	}
	return ok(out)
}

// answerTasks lists a repository's tasks, newest first.
func (s *Server) answerTasks(c *call) reply {
	var found []map[string]any
	for _, j := range s.inOrder(c) {
		if j.task > 0 {
			found = append(found, map[string]any{
				"id": j.task, "name": j.name, "head_branch": "main", "head_sha": strings.Repeat("a", 40), "run_number": j.run,
				"event":         "push",
				"display_title": "Build", "status": j.status, "workflow_id": "ci.yml", "url": s.base + "/" + j.repo.path + "/actions/runs/" +
					strconv.FormatInt(j.run, 10),
				"created_at": stamp(j.created), "updated_at": stamp(j.touched), "run_started_at": stamp(j.started),
			})
		}
	}
	slices.Reverse(found)
	return ok(map[string]any{"workflow_runs": page(c, found), "total_count": len(found)})
}
