// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// States of a job in the control API.
const (
	statusWaiting   = "waiting"
	statusQueued    = "queued"
	statusRunning   = "in_progress"
	statusCompleted = "completed"
)

// Conclusions of a job.
const (
	conclusionSuccess   = "success"
	conclusionFailure   = "failure"
	conclusionCancelled = "cancelled"
)

type job struct {
	control.Job

	duration time.Duration
	command  string
	url      string // empty if commands cannot reach the simulator
}

func (j *job) snapshot() control.Job {
	out := j.Job
	out.Labels = slices.Clone(j.Labels)
	return out
}

// Queue queues jobs, sends their webhooks and returns them. A job with an environment waits until
// Approve is called.
func (s *Server) Queue(spec control.JobSpec) ([]control.Job, error) {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	source := cmp.Or(spec.Repo, s.opts.Sources[0])
	switch {
	case !slices.Contains(s.opts.Sources, source):
		return nil, fmt.Errorf("queue jobs: there is no source %q", source)
	case spec.Count < 0 || spec.Duration < 0:
		return nil, errors.New("queue jobs: count and duration must not be negative")
	case spec.Workflow != "":
		return nil, errors.New("queue jobs: a generic job has no workflow")
	}
	s.ids.run++
	out := make([]control.Job, 0, max(spec.Count, 1))
	for range max(spec.Count, 1) {
		s.ids.job++
		j := &job{duration: spec.Duration, command: spec.Command, Job: control.Job{
			ID: s.ids.job, Key: "gen-" + strconv.FormatInt(s.ids.job, 10), RunID: s.ids.run, Repo: source,
			Name: cmp.Or(spec.Name, "build"), Labels: slices.Clone(spec.Labels), Environment: spec.Environment,
			Status: statusQueued, QueuedAt: s.now(),
		}}
		if s.opts.URL != "" {
			j.url = s.opts.URL + "/jobs/" + j.Key
		}
		s.jobs = append(s.jobs, j)
		if spec.Environment != "" {
			j.Status = statusWaiting
		} else {
			s.queueWebhook(j)
		}
		out = append(out, j.snapshot())
	}
	return out, nil
}

func (s *Server) findJob(match func(*job) bool) *job {
	if i := slices.IndexFunc(s.jobs, match); i >= 0 {
		return s.jobs[i]
	}
	return nil
}

// Approve queues a waiting job.
func (s *Server) Approve(id int64) error {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	j := s.findJob(func(j *job) bool { return j.ID == id })
	if j == nil || j.Status != statusWaiting {
		return fmt.Errorf("approve job %d: there is no such waiting job", id)
	}
	j.Status = statusQueued
	s.queueWebhook(j)
	return nil
}

// Cancel cancels a job that has not ended. The command of a running job does not learn of the
// cancellation.
func (s *Server) Cancel(id int64) error {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	j := s.findJob(func(j *job) bool { return j.ID == id })
	if j == nil || j.Status == statusCompleted {
		return fmt.Errorf("cancel job %d: there is no such unfinished job", id)
	}
	hadWebhook := j.Status != statusWaiting
	s.completeJob(j, conclusionCancelled)
	if hadWebhook {
		s.queueWebhook(j)
	}
	return nil
}

// startJob records that the command of a runner runs the job. The lock is held.
func (s *Server) startJob(j *job, runner string) error {
	switch j.Status {
	case statusRunning:
		j.Requeues++ // its machine failed, and another machine runs the job
	case statusQueued:
	default:
		return fmt.Errorf("start job %s: it is %s", j.Key, j.Status)
	}
	j.Status, j.RunnerName, j.StartedAt = statusRunning, runner, s.now()
	if s.opts.Updates {
		s.queueWebhook(j)
	}
	return nil
}

// finishJob records the result of a job. The lock is held.
func (s *Server) finishJob(j *job, conclusion string) error {
	if j.Status != statusRunning {
		return fmt.Errorf("finish job %s: it is %s", j.Key, j.Status)
	}
	s.completeJob(j, conclusion)
	if s.opts.Updates {
		s.queueWebhook(j)
	}
	return nil
}

func (s *Server) completeJob(j *job, conclusion string) {
	j.Status, j.Conclusion, j.CompletedAt = statusCompleted, conclusion, s.now()
}
