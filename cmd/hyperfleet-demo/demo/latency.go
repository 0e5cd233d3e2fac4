// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Latencies are the latencies of the phases of a machine, in the order of the phases. A phase is measured
// for each machine that completed the phase.
type Latencies struct {
	// QueuedToClone is the time from the queueing of a job at the CI platform to the clone request. The
	// n-th job is paired with the n-th clone. Delays by lost webhooks are included.
	QueuedToClone Latency `json:"queuedToClone"`
	// ReceivedToClaim is the time from the operator's first knowledge of a job to the creation of a claim.
	// The n-th job is paired with the n-th claim, because any machine can run any job.
	ReceivedToClaim Latency `json:"receivedToClaim"`
	// ClaimToClone is the time from the creation of the claim to the clone request. It consists mostly of
	// the wait for a free clone slot.
	ClaimToClone Latency `json:"claimToClone"`
	// Clone is the time from the clone request to the start of the VM, including the upload of the
	// cloud-init ISO.
	Clone Latency `json:"clone"`
	// Boot is the time from the start of the VM until its runner is online.
	Boot Latency `json:"boot"`
	// JobStart is the time from the runner being online until it has a job.
	JobStart Latency `json:"jobStart"`
	// Destroyed is the time from the end of the job to the deletion of the claim.
	Destroyed Latency `json:"destroyed"`
	// Life is the time from the creation to the deletion of the claim.
	Life Latency `json:"life"`
}

// phase is a phase's name in the report and its latency.
type phase struct {
	name    string
	latency Latency
}

func (l Latencies) phases() []phase {
	return []phase{
		{"queued -> clone call", l.QueuedToClone},
		{"job received -> claim", l.ReceivedToClaim},
		{"claim -> clone call", l.ClaimToClone},
		{"clone", l.Clone},
		{"boot", l.Boot},
		{"job started", l.JobStart},
		{"deleted", l.Destroyed},
		{"claim lifetime", l.Life},
	}
}

// computeLatencies computes the latencies from the times at which jobs were received, from the claims, and from the jobs of
// the CI platform. The former two must be sorted, earliest first. It does not set QueuedToClone.
func computeLatencies(received []time.Time, claims []claimRecord, jobs []control.Job) Latencies {
	var toClaim []time.Duration

	for i, receiveTime := range received {
		if i < len(claims) {
			toClaim = append(toClaim, max(claims[i].firstSeen.Sub(receiveTime), 0))
		}
	}

	between := func(from, to func(claimRecord) time.Time) Latency {
		var samples []time.Duration

		for _, c := range claims {
			if a, b := from(c), to(c); !a.IsZero() && !b.IsZero() {
				samples = append(samples, max(b.Sub(a), 0))
			}
		}

		return summarizeLatency(samples)
	}

	byRunner := map[string]control.Job{}
	for i := range jobs {
		byRunner[jobs[i].RunnerName] = jobs[i]
	}

	delete(byRunner, "") // jobs without a runner

	created := func(c claimRecord) time.Time { return c.firstSeen }
	cloned := func(c claimRecord) time.Time { return timeOf(c.times.CloneStarted) }
	started := func(c claimRecord) time.Time { return timeOf(c.times.Started) }
	ready := func(c claimRecord) time.Time { return timeOf(c.times.Ready) }
	jobStarted := func(c claimRecord) time.Time { return byRunner[c.runner].StartedAt }
	jobEnded := func(c claimRecord) time.Time { return byRunner[c.runner].CompletedAt }
	deleted := func(c claimRecord) time.Time { return c.deletionSeen }

	return Latencies{
		ReceivedToClaim: summarizeLatency(toClaim),
		ClaimToClone:    between(created, cloned),
		Clone:           between(cloned, started),
		Boot:            between(started, ready),
		JobStart:        between(ready, jobStarted),
		Destroyed:       between(jobEnded, deleted),
		Life:            between(created, deleted),
	}
}

// queuedToCloneLatency computes QueuedToClone. It sorts the jobs and the clones by time and pairs the n-th
// job with the n-th clone.
func queuedToCloneLatency(jobs []control.Job, claims []claimRecord) Latency {
	queueTimes, cloneTimes := make([]time.Time, 0, len(jobs)), make([]time.Time, 0, len(claims))

	for i := range jobs {
		queueTimes = append(queueTimes, jobs[i].QueuedAt)
	}

	for i := range claims {
		if cloneTime := timeOf(claims[i].times.CloneStarted); !cloneTime.IsZero() {
			cloneTimes = append(cloneTimes, cloneTime)
		}
	}

	slices.SortFunc(queueTimes, time.Time.Compare)
	slices.SortFunc(cloneTimes, time.Time.Compare)

	var samples []time.Duration
	for i := range min(len(queueTimes), len(cloneTimes)) {
		samples = append(samples, max(cloneTimes[i].Sub(queueTimes[i]), 0))
	}

	return summarizeLatency(samples)
}

func timeOf(t *metav1.MicroTime) time.Time {
	if t == nil {
		return time.Time{}
	}

	return t.Time
}

// computeSpan returns the time from the earliest start to the latest end, or zero if one of the lists is
// empty.
func computeSpan(starts, ends []time.Time) time.Duration {
	if len(starts) == 0 || len(ends) == 0 {
		return 0
	}

	return slices.MaxFunc(ends, time.Time.Compare).Sub(slices.MinFunc(starts, time.Time.Compare))
}

// latestTime returns the latest of the times, or the zero time if the list is empty.
func latestTime(times []time.Time) time.Time {
	if len(times) == 0 {
		return time.Time{}
	}

	return slices.MaxFunc(times, time.Time.Compare)
}
