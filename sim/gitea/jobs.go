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

// States of a job at Forgejo.
const (
	statusBlocked   = "blocked"
	statusWaiting   = "waiting"
	statusRunning   = "running"
	statusSuccess   = "success"
	statusFailure   = "failure"
	statusCancelled = "cancelled"
)

// maxJobs is the maximum number of jobs of one control request.
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
	attempt     int64 // how often a runner has taken the job
	log         []string
	// ranID and ranName identify the runner of the job, also after the runner is deleted.
	ranID   int64
	ranName string

	createdAt, startedAt, stoppedAt, touchedAt time.Time
}

func (j *job) isFinished() bool {
	return j.status == statusSuccess || j.status == statusFailure || j.status == statusCancelled
}

// giteaStatus returns the status and the conclusion at Gitea (services/convert: ToActionsStatus).
func (j *job) giteaStatus() (status, conclusion string) {
	switch {
	case j.isFinished():
		return "completed", j.status
	case j.status == statusRunning:
		return "in_progress", ""
	case j.status == statusWaiting:
		return "queued", ""
	default:
		return "waiting", ""
	}
}

func (j *job) toControl() control.Job {
	status, conclusion := j.giteaStatus()
	return control.Job{
		ID: j.id, Key: j.handle, RunID: j.run, Repo: j.repo.path, Name: j.name, Labels: slices.Clone(j.labels), Status: status,
		Conclusion: conclusion, Environment: j.environment, RunnerID: j.ranID, RunnerName: j.ranName,
		QueuedAt: j.createdAt, StartedAt: j.startedAt, CompletedAt: j.stoppedAt,
	}
}

// Queue queues jobs of one new run and returns them. A job with an environment is blocked until
// Approve is called.
func (s *Server) Queue(spec control.JobSpec) ([]control.Job, error) {
	s.lock()
	defer s.core.Mu.Unlock()
	repo := s.findRepository(spec.Repo)
	switch {
	case repo == nil:
		return nil, fmt.Errorf("queue jobs: there is no repository %q", spec.Repo)
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
			id: s.ids.job, run: s.ids.run, handle: engine.NewUUID(), repo: repo, name: spec.Name, labels: slices.Clone(spec.Labels),
			environment: spec.Environment, status: statusWaiting, duration: spec.Duration, command: spec.Command, createdAt: s.now(),
		}
		if j.environment != "" {
			j.status = statusBlocked
		}
		s.jobs[j.id] = j
		s.queueWebhook(j)
		out = append(out, j.toControl())
	}
	s.core.Wake()
	return out, nil
}

// Approve queues a blocked job.
func (s *Server) Approve(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.status != statusBlocked {
		return fmt.Errorf("approve job %d: there is no such blocked job", id)
	}
	j.status = statusWaiting
	s.queueWebhook(j)
	return nil
}

// Cancel cancels a job that has not ended. The runner learns of the cancellation with its next call
// for the job.
func (s *Server) Cancel(id int64) error {
	s.lock()
	defer s.core.Mu.Unlock()
	j := s.jobs[id]
	if j == nil || j.isFinished() {
		return fmt.Errorf("cancel job %d: there is no such unfinished job", id)
	}
	s.finishJob(j, statusCancelled)
	return nil
}

// Log returns the part of a job's log that its runner has sent.
func (s *Server) Log(id int64) string {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	if j := s.jobs[id]; j != nil {
		return strings.Join(j.log, "\n")
	}
	return ""
}

// startJob assigns a waiting job to a runner.
func (s *Server) startJob(j *job, r *runner) {
	s.ids.task++
	j.attempt++
	j.status, j.task, j.startedAt, j.touchedAt, j.ranID, j.ranName = statusRunning, s.ids.task, s.now(), s.now(), r.id, r.name
	r.job, r.activeAt, r.hasRunJob = j, s.now(), true
	s.queueWebhook(j)
}

// finishJob ends a job. An ephemeral runner is deleted with its job.
func (s *Server) finishJob(j *job, status string) {
	j.status, j.stoppedAt = status, s.now()
	if r := s.runners[j.ranID]; r != nil && r.job == j {
		r.job = nil
		if r.ephemeral {
			delete(s.runners, r.id)
		}
	}
	s.queueWebhook(j)
}

// advance applies every deadline that has passed. The lock is held.
func (s *Server) advance(now time.Time) {
	for _, j := range s.jobs {
		if j.status == statusRunning && now.Sub(j.touchedAt) >= s.opts.LostTimeout {
			s.finishJob(j, statusFailure)
		}
	}
}

// computeDelay returns the time until the next deadline.
func (s *Server) computeDelay() time.Duration {
	s.lock()
	defer s.core.Mu.Unlock()
	next := engine.IdleDelay
	for _, j := range s.jobs {
		if j.status == statusRunning {
			next = min(next, j.touchedAt.Add(s.opts.LostTimeout).Sub(s.now()))
		}
	}
	return next
}

// listJobs returns the jobs of a call's scope, oldest first.
func (s *Server) listJobs(c *call) []*job {
	var out []*job
	for _, id := range slices.Sorted(maps.Keys(s.jobs)) {
		j := s.jobs[id]
		if c.scope == "" || strings.EqualFold(c.scope, j.repo.path) || strings.EqualFold(c.scope, j.repo.owner()) {
			out = append(out, j)
		}
	}
	return out
}

// formatTime formats a time as the servers do. The zero time is formatted as the start of the
// year 1970.
func formatTime(t time.Time) string {
	if t.IsZero() {
		t = time.Unix(0, 0)
	}
	return t.UTC().Format(time.RFC3339)
}

// encodeGiteaJob returns a job as Gitea represents it.
func (s *Server) encodeGiteaJob(j *job) map[string]any {
	status, conclusion := j.giteaStatus()
	out := map[string]any{
		"id": j.id, "url": fmt.Sprintf("%s/api/v1/repos/%s/actions/jobs/%d", s.baseURL, j.repo.path, j.id),
		"html_url": fmt.Sprintf("%s/%s/actions/runs/%d/jobs/%d", s.baseURL, j.repo.path, j.run, j.id), "run_id": j.run,
		"run_url": fmt.Sprintf("%s/api/v1/repos/%s/actions/runs/%d", s.baseURL, j.repo.path, j.run), "name": j.name,
		"labels": append([]string{}, j.labels...), "run_attempt": j.attempt, "head_sha": strings.Repeat("a", 40), "head_branch": "main",
		"status": status, "steps": []any{},
		"created_at": formatTime(j.createdAt), "started_at": formatTime(j.startedAt), "completed_at": formatTime(j.stoppedAt),
	}
	if conclusion != "" {
		out["conclusion"] = conclusion
	}
	if j.ranID != 0 {
		out["runner_id"], out["runner_name"] = j.ranID, j.ranName
	}
	return out
}

func (s *Server) listGiteaJobs(c *call) response {
	statuses := c.r.URL.Query()["status"]
	allowed := []string{
		"pending", "waiting", "requested", "action_required", "queued", "in_progress", "completed", "failure", "success", "skipped",
		"neutral",
	}
	for _, status := range statuses {
		if !slices.Contains(allowed, status) {
			return newError(http.StatusBadRequest, "invalid status %s", status)
		}
	}
	var found []map[string]any
	for _, j := range s.listJobs(c) {
		status, conclusion := j.giteaStatus()
		if len(statuses) == 0 || slices.Contains(statuses, status) || slices.Contains(statuses, conclusion) {
			found = append(found, s.encodeGiteaJob(j))
		}
	}
	return newOK(map[string]any{"jobs": paginate(c, found), "total_count": len(found)})
}

func (s *Server) getGiteaJob(c *call) response {
	j := s.jobs[c.id()]
	if j == nil || j.repo != c.repo {
		return newNotFound()
	}
	return newOK(s.encodeGiteaJob(j))
}

// listForgejoJobs lists the waiting and running jobs. If the call has labels, it lists the jobs
// that need no other labels. An empty list is encoded as null.
func (s *Server) listForgejoJobs(c *call) response {
	var (
		out    []map[string]any
		labels []string
	)
	if value := c.r.URL.Query().Get("labels"); value != "" {
		labels = strings.Split(value, ",")
	}
	for _, j := range s.listJobs(c) {
		needsOtherLabel := slices.ContainsFunc(j.labels, func(label string) bool { return !slices.Contains(labels, label) })
		if j.status != statusWaiting && j.status != statusRunning || len(labels) > 0 && needsOtherLabel {
			continue
		}
		out = append(out, map[string]any{
			"id": j.id, "attempt": 1, "handle": j.handle, "repo_id": j.repo.id, "owner_id": 2, "name": j.name, "needs": nil,
			"runs_on": append([]string{}, j.labels...), "task_id": j.task, "status": j.status,
		})
	}
	return newOK(out)
}

// listTasks lists the tasks of a repository, newest first.
func (s *Server) listTasks(c *call) response {
	var found []map[string]any
	for _, j := range s.listJobs(c) {
		if j.task > 0 {
			found = append(found, map[string]any{
				"id": j.task, "name": j.name, "head_branch": "main", "head_sha": strings.Repeat("a", 40), "run_number": j.run,
				"event":         "push",
				"display_title": "Build", "status": j.status, "workflow_id": "ci.yml",
				"url":        s.baseURL + "/" + j.repo.path + "/actions/runs/" + strconv.FormatInt(j.run, 10),
				"created_at": formatTime(j.createdAt), "updated_at": formatTime(j.touchedAt), "run_started_at": formatTime(j.startedAt),
			})
		}
	}
	slices.Reverse(found)
	return newOK(map[string]any{"workflow_runs": paginate(c, found), "total_count": len(found)})
}
