// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/engine"
)

// maxAssignments of one job that no runner takes.
const maxAssignments = 3

// offerState is how far a queued job has come with a set.
type offerState int

const (
	unoffered offerState = iota
	offered
	acquired
	assigned
)

// offer is a job's story with scale sets.
type offer struct {
	state    offerState
	job      string // the same for all assignments
	request  int64  // 0 where the service assigns at once
	at       time.Time
	tries    int
	notUntil time.Time
}

// setCounts are the statistics of a set.
type setCounts struct {
	Available  int `json:"totalAvailableJobs"`
	Acquired   int `json:"totalAcquiredJobs"`
	Assigned   int `json:"totalAssignedJobs"`
	Running    int `json:"totalRunningJobs"`
	Registered int `json:"totalRegisteredRunners"`
	Busy       int `json:"totalBusyRunners"`
	Idle       int `json:"totalIdleRunners"`
}

// countSet counts a set's jobs and runners. The lock is held.
func (s *Server) countSet(set *scaleSet) setCounts {
	var out setCounts
	for _, j := range s.jobs {
		if j.set != set || j.status == statusCompleted {
			continue
		}
		switch j.offer.state {
		case offered:
			out.Available++
		case acquired:
			out.Acquired++
		case assigned:
			out.Assigned++
		case unoffered:
		}
		if j.status == statusInProgress {
			out.Running++
		}
	}
	for _, r := range s.runners {
		if r.set != set {
			continue
		}
		out.Registered++
		switch {
		case r.busy():
			out.Busy++
		case r.online(s.now(), s.opts.OfflineAfter):
			out.Idle++
		}
	}
	return out
}

// wants tells whether a job asks for the set: the set has all of its labels, and the
// job's repository may use it.
func (s *Server) wants(j *job, set *scaleSet) bool {
	r := &runner{scope: set.scope, group: set.group}
	for _, l := range set.labels {
		r.labels = append(r.labels, label{name: l.Name})
	}
	return s.fits(r, j)
}

// advanceScaleSets ends silent sessions, takes jobs back that nobody took, and assigns
// queued ones. The lock is held.
func (s *Server) advanceScaleSets(now time.Time) {
	for _, set := range s.scaling.sets {
		if open := set.session; open != nil && open.polls == 0 && now.Sub(open.seen) >= s.opts.ScaleSets.SessionLife {
			set.session = nil
			set.changed()
		}
	}
	for _, j := range slices.Clone(s.queue) {
		if j.set != nil && j.offer.state == assigned && j.runner == nil && now.Sub(j.offer.at) >= s.opts.ScaleSets.AssignTimeout {
			s.takeBack(j, now)
		}
	}
	for _, j := range s.queue {
		if j.runner != nil || now.Before(j.offer.notUntil) {
			continue
		}
		if j.set == nil {
			j.set = s.setFor(j)
		}
		if j.set != nil {
			s.bring(j, now)
		}
	}
}

// setFor finds a set with room for the job.
func (s *Server) setFor(j *job) *scaleSet {
	for _, set := range s.scaling.sets {
		if !s.wants(j, set) {
			continue
		}
		if counts := s.countSet(set); s.opts.ScaleSets.Offer || counts.Assigned < set.capacity {
			return set
		}
	}
	return nil
}

// bring moves a job one step nearer to its set.
func (s *Server) bring(j *job, now time.Time) {
	if j.offer.job == "" {
		j.offer.job = engine.UUID()
	}
	switch j.offer.state {
	case unoffered:
		if s.opts.ScaleSets.Offer {
			s.scaling.last.request++
			j.offer.request, j.offer.state = s.scaling.last.request, offered
			s.tell(j, "JobAvailable", map[string]any{
				"acquireJobUrl": "https://actions.invalid/acquire/" + strconv.FormatInt(j.offer.request, 10),
			})
			return
		}
		s.assign(j, now)
	case acquired:
		s.assign(j, now)
	case offered, assigned:
	}
}

func (s *Server) assign(j *job, now time.Time) {
	j.offer.state, j.offer.at = assigned, now
	j.offer.tries++
	s.tell(j, "JobAssigned", nil)
}

// takeBack ends an assignment that came to nothing: the job waits for another, a few times.
func (s *Server) takeBack(j *job, now time.Time) {
	s.tell(j, "JobCompleted", map[string]any{"result": "canceled", "runnerId": 0, "runnerName": "", "finishTime": wireTime(now)})
	set := j.set
	if j.offer.tries >= maxAssignments {
		j.set = nil // its end was told already
		s.complete(j, conclusionCancelled)
		return
	}
	j.offer.state, j.set = unoffered, nil
	j.offer.notUntil = now.Add(s.opts.ScaleSets.AssignDelay * time.Duration(j.offer.tries))
	j.requeues++
	set.changed()
}

// tellStarted and tellCompleted follow the job on its runner.
func (s *Server) tellStarted(j *job) {
	if j.set != nil {
		s.tell(j, "JobStarted", map[string]any{"runnerId": j.ran.id, "runnerName": j.ran.name})
	}
}

func (s *Server) tellCompleted(j *job) {
	if j.set == nil || j.offer.state == unoffered {
		return
	}
	result := map[string]string{
		conclusionSuccess: "succeeded", conclusionFailure: "failed", conclusionCancelled: "canceled",
	}[j.conclusion]
	s.tell(j, "JobCompleted", map[string]any{
		"result": result, "runnerId": j.ran.id, "runnerName": j.ran.name,
	})
}

// wireTime writes a time as the service does: Go's zero time where there is none.
func wireTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (s *Server) tell(j *job, kind string, more map[string]any) {
	repo := j.run.repo
	assignedAt := j.offer.at
	if kind == "JobAvailable" {
		assignedAt = time.Time{}
	}
	event := map[string]any{
		"messageType": kind, "jobId": j.offer.job, "runnerRequestId": j.offer.request,
		"repositoryName": repo.name, "ownerName": repo.owner.login,
		"jobWorkflowRef": repo.fullName() + "/.github/workflows/" + strings.ToLower(j.run.workflow) + ".yml@refs/heads/main",
		"jobDisplayName": j.name, "workflowRunId": j.run.id, "eventName": "push", "requestLabels": slices.Clone(j.labels),
		"queueTime": wireTime(j.created), "scaleSetAssignTime": wireTime(assignedAt),
		"runnerAssignTime": wireTime(j.started), "finishTime": wireTime(j.completed),
	}
	maps.Copy(event, more)
	j.set.events = append(j.set.events, event)
	j.set.changed()
}

// listAcquirable lists the offered jobs.
func (c *setCall) listAcquirable() {
	list := []map[string]any{}
	for _, j := range c.s.queue {
		if j.set == c.set && j.offer.state == offered {
			list = append(list, map[string]any{
				"acquireJobUrl": "https://actions.invalid/acquire/" + strconv.FormatInt(j.offer.request, 10),
				"messageType":   "", "runnerRequestId": j.offer.request, "repositoryName": j.run.repo.name,
				"ownerName": j.run.repo.owner.login, "eventName": "push", "requestLabels": slices.Clone(j.labels),
			})
		}
	}
	sendJSON(c.w, http.StatusOK, map[string]any{"count": len(list), "value": list})
}

// nextSetDeadline gives the moments at which advanceScaleSets has something to do.
func (s *Server) nextSetDeadline(consider func(time.Time)) {
	for _, set := range s.scaling.sets {
		if set.session != nil && set.session.polls == 0 {
			consider(set.session.seen.Add(s.opts.ScaleSets.SessionLife))
		}
	}
	now := s.now()
	for _, j := range s.queue {
		switch {
		case j.set != nil && j.offer.state == assigned && j.runner == nil:
			consider(j.offer.at.Add(s.opts.ScaleSets.AssignTimeout))
		case j.set == nil && now.Before(j.offer.notUntil):
			consider(j.offer.notUntil)
		}
	}
}

// assignedSet gives the set whose runners alone may take the job, if there is one.
func (j *job) assignedSet() *scaleSet {
	if j.offer.state != assigned {
		return nil
	}
	return j.set
}
