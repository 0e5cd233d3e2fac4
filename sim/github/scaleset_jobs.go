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

// maxAssignments is how often the service assigns a job that no runner takes.
const maxAssignments = 3

// offerState is the state of a queued job at a set.
type offerState int

const (
	offerNone offerState = iota
	offerOpen
	offerAcquired
	offerAssigned
)

// offer is the state of a job at scale sets.
type offer struct {
	state      offerState
	jobID      string // the same for all assignments
	requestID  int64  // 0 if the service assigns jobs at once
	assignedAt time.Time
	attempts   int
	notBefore  time.Time
}

// setCounts is the statistics of a set.
type setCounts struct {
	Available  int `json:"totalAvailableJobs"`
	Acquired   int `json:"totalAcquiredJobs"`
	Assigned   int `json:"totalAssignedJobs"`
	Running    int `json:"totalRunningJobs"`
	Registered int `json:"totalRegisteredRunners"`
	Busy       int `json:"totalBusyRunners"`
	Idle       int `json:"totalIdleRunners"`
}

// countSet counts the jobs and runners of a set. The lock is held.
func (s *Server) countSet(set *scaleSet) setCounts {
	var out setCounts
	for _, j := range s.jobs {
		if j.set != set || j.status == statusCompleted {
			continue
		}
		switch j.offer.state {
		case offerOpen:
			out.Available++
		case offerAcquired:
			out.Acquired++
		case offerAssigned:
			out.Assigned++
		case offerNone:
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
		case r.isBusy():
			out.Busy++
		case r.isOnline(s.now(), s.opts.OfflineAfter):
			out.Idle++
		}
	}
	return out
}

// matchesSet reports whether a job matches a set: the set has all labels of the job, and the job's
// repository may use the set.
func (s *Server) matchesSet(j *job, set *scaleSet) bool {
	r := &runner{scope: set.scope, group: set.group}
	for _, l := range set.labels {
		r.labels = append(r.labels, label{name: l.Name})
	}
	return s.canRun(r, j)
}

// advanceScaleSets ends sessions and assignments that have timed out, and offers or assigns queued
// jobs. The lock is held.
func (s *Server) advanceScaleSets(now time.Time) {
	for _, set := range s.scaling.sets {
		session := set.session
		if session != nil && session.openPolls == 0 && now.Sub(session.lastSeen) >= s.opts.ScaleSets.SessionTimeout {
			set.session = nil
			set.wakePolls()
		}
	}
	for _, j := range slices.Clone(s.queue) {
		if j.set != nil && j.offer.state == offerAssigned && j.runner == nil &&
			now.Sub(j.offer.assignedAt) >= s.opts.ScaleSets.AssignTimeout {
			s.revokeAssignment(j, now)
		}
	}
	for _, j := range s.queue {
		if j.runner != nil || now.Before(j.offer.notBefore) {
			continue
		}
		if j.set == nil {
			j.set = s.findSetFor(j)
		}
		if j.set != nil {
			s.offerOrAssign(j, now)
		}
	}
}

// findSetFor returns a set that matches the job and has free capacity. A service that offers jobs
// ignores the capacity.
func (s *Server) findSetFor(j *job) *scaleSet {
	for _, set := range s.scaling.sets {
		if !s.matchesSet(j, set) {
			continue
		}
		if counts := s.countSet(set); s.opts.ScaleSets.OfferJobs || counts.Assigned < set.capacity {
			return set
		}
	}
	return nil
}

// offerOrAssign offers a job to its set, or assigns the job if the set has acquired it or the
// service assigns at once.
func (s *Server) offerOrAssign(j *job, now time.Time) {
	if j.offer.jobID == "" {
		j.offer.jobID = engine.NewUUID()
	}
	switch j.offer.state {
	case offerNone:
		if s.opts.ScaleSets.OfferJobs {
			s.scaling.lastIDs.request++
			j.offer.requestID, j.offer.state = s.scaling.lastIDs.request, offerOpen
			s.addEvent(j, "JobAvailable", map[string]any{
				"acquireJobUrl": "https://actions.invalid/acquire/" + strconv.FormatInt(j.offer.requestID, 10),
			})
			return
		}
		s.assign(j, now)
	case offerAcquired:
		s.assign(j, now)
	case offerOpen, offerAssigned:
	}
}

func (s *Server) assign(j *job, now time.Time) {
	j.offer.state, j.offer.assignedAt = offerAssigned, now
	j.offer.attempts++
	s.addEvent(j, "JobAssigned", nil)
}

// revokeAssignment ends an assignment that no runner took. The job waits for another assignment.
// After maxAssignments it is cancelled.
func (s *Server) revokeAssignment(j *job, now time.Time) {
	s.addEvent(j, "JobCompleted", map[string]any{
		"result": "canceled", "runnerId": 0, "runnerName": "", "finishTime": formatEventTime(now),
	})
	set := j.set
	if j.offer.attempts >= maxAssignments {
		j.set = nil // the set has the JobCompleted event already
		s.completeJob(j, conclusionCancelled)
		return
	}
	j.offer.state, j.set = offerNone, nil
	j.offer.notBefore = now.Add(s.opts.ScaleSets.AssignDelay * time.Duration(j.offer.attempts))
	j.requeues++
	set.wakePolls()
}

// addStartedEvent adds the event for a job that has started.
func (s *Server) addStartedEvent(j *job) {
	if j.set != nil {
		s.addEvent(j, "JobStarted", map[string]any{"runnerId": j.ranOn.id, "runnerName": j.ranOn.name})
	}
}

// addCompletedEvent adds the event for a completed job. A job that was not offered or assigned to a
// set has no event.
func (s *Server) addCompletedEvent(j *job) {
	if j.set == nil || j.offer.state == offerNone {
		return
	}
	result := map[string]string{
		conclusionSuccess: "succeeded", conclusionFailure: "failed", conclusionCancelled: "canceled",
	}[j.conclusion]
	s.addEvent(j, "JobCompleted", map[string]any{
		"result": result, "runnerId": j.ranOn.id, "runnerName": j.ranOn.name,
	})
}

// formatEventTime formats a time as the service does: the zero time is Go's zero time.
func formatEventTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func (s *Server) addEvent(j *job, kind string, more map[string]any) {
	repo := j.run.repo
	assignedAt := j.offer.assignedAt
	if kind == "JobAvailable" {
		assignedAt = time.Time{}
	}
	event := map[string]any{
		"messageType": kind, "jobId": j.offer.jobID, "runnerRequestId": j.offer.requestID,
		"repositoryName": repo.name, "ownerName": repo.owner.login,
		"jobWorkflowRef": repo.fullName() + "/.github/workflows/" + strings.ToLower(j.run.workflow) + ".yml@refs/heads/main",
		"jobDisplayName": j.name, "workflowRunId": j.run.id, "eventName": "push", "requestLabels": slices.Clone(j.labels),
		"queueTime": formatEventTime(j.createdAt), "scaleSetAssignTime": formatEventTime(assignedAt),
		"runnerAssignTime": formatEventTime(j.startedAt), "finishTime": formatEventTime(j.completedAt),
	}
	maps.Copy(event, more)
	j.set.events = append(j.set.events, event)
	j.set.wakePolls()
}

// listAcquirableJobs lists the offered jobs of the set.
func (c *setCall) listAcquirableJobs() {
	list := []map[string]any{}
	for _, j := range c.s.queue {
		if j.set == c.set && j.offer.state == offerOpen {
			list = append(list, map[string]any{
				"acquireJobUrl": "https://actions.invalid/acquire/" + strconv.FormatInt(j.offer.requestID, 10),
				"messageType":   "", "runnerRequestId": j.offer.requestID, "repositoryName": j.run.repo.name,
				"ownerName": j.run.repo.owner.login, "eventName": "push", "requestLabels": slices.Clone(j.labels),
			})
		}
	}
	writeJSON(c.w, http.StatusOK, map[string]any{"count": len(list), "value": list})
}

// considerScaleSetDeadlines calls consider with each time at which advanceScaleSets has something to do.
func (s *Server) considerScaleSetDeadlines(consider func(time.Time)) {
	for _, set := range s.scaling.sets {
		if set.session != nil && set.session.openPolls == 0 {
			consider(set.session.lastSeen.Add(s.opts.ScaleSets.SessionTimeout))
		}
	}
	now := s.now()
	for _, j := range s.queue {
		switch {
		case j.set != nil && j.offer.state == offerAssigned && j.runner == nil:
			consider(j.offer.assignedAt.Add(s.opts.ScaleSets.AssignTimeout))
		case j.set == nil && now.Before(j.offer.notBefore):
			consider(j.offer.notBefore)
		}
	}
}

// assignedSet returns the set whose runners alone may run the job, or nil.
func (j *job) assignedSet() *scaleSet {
	if j.offer.state != offerAssigned {
		return nil
	}
	return j.set
}
