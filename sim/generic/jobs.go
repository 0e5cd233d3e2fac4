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

// States of a job, in the words of the control API.
const (
	statusWaiting   = "waiting"
	statusQueued    = "queued"
	statusRunning   = "in_progress"
	statusCompleted = "completed"
)

// Conclusions.
const (
	success   = "success"
	failure   = "failure"
	cancelled = "cancelled"
)

type job struct {
	control.Job

	duration time.Duration
	command  string
	url      string // "" where commands cannot reach the simulator
}

func (j *job) snapshot() control.Job {
	out := j.Job
	out.Labels = slices.Clone(j.Labels)
	return out
}

// Queue adds jobs and tells of them. A job with an environment waits for Approve.
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
			s.notify(j)
		}
		out = append(out, j.snapshot())
	}
	return out, nil
}

func (s *Server) find(match func(*job) bool) *job {
	if i := slices.IndexFunc(s.jobs, match); i >= 0 {
		return s.jobs[i]
	}
	return nil
}

// Approve lets a job that waits into the queue.
func (s *Server) Approve(id int64) error {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	j := s.find(func(j *job) bool { return j.ID == id })
	if j == nil || j.Status != statusWaiting {
		return fmt.Errorf("approve job %d: no such job waits", id)
	}
	j.Status = statusQueued
	s.notify(j)
	return nil
}

// Cancel ends a job that is not over. Its command is not told, if one runs.
func (s *Server) Cancel(id int64) error {
	s.core.Mu.Lock()
	defer s.core.Mu.Unlock()
	j := s.find(func(j *job) bool { return j.ID == id })
	if j == nil || j.Status == statusCompleted {
		return fmt.Errorf("cancel job %d: no such job is unfinished", id)
	}
	told := j.Status != statusWaiting
	s.complete(j, cancelled)
	if told {
		s.notify(j)
	}
	return nil
}

// begin notes that a command does the job. The lock is held.
func (s *Server) begin(j *job, by string) error {
	switch j.Status {
	case statusRunning:
		j.Requeues++ // its machine died, and another has it now
	case statusQueued:
	default:
		return fmt.Errorf("start job %s: it is %s", j.Key, j.Status)
	}
	j.Status, j.RunnerName, j.StartedAt = statusRunning, by, s.now()
	if s.opts.Updates {
		s.notify(j)
	}
	return nil
}

// end notes the result. The lock is held.
func (s *Server) end(j *job, conclusion string) error {
	if j.Status != statusRunning {
		return fmt.Errorf("finish job %s: it is %s", j.Key, j.Status)
	}
	s.complete(j, conclusion)
	if s.opts.Updates {
		s.notify(j)
	}
	return nil
}

func (s *Server) complete(j *job, conclusion string) {
	j.Status, j.Conclusion, j.CompletedAt = statusCompleted, conclusion, s.now()
}
