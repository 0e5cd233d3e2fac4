// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Latencies of the phases of a machine's life, in their order. A phase is measured for
// the machines that went through it.
type Latencies struct {
	// QueuedToClone: from a job's being queued at the CI platform to the request for a
	// clone, paired as in ReceivedToClaim. Webhooks that are lost are in it.
	QueuedToClone Latency `json:"queuedToClone"`
	// ReceivedToClaim: from the operator's first word of a job to a claim. Jobs and
	// claims are paired in their order, since any machine may take any job.
	ReceivedToClaim Latency `json:"receivedToClaim"`
	// ClaimToClone: from the claim to the request for its clone; most of it is the wait
	// for a free place among the parallel clones.
	ClaimToClone Latency `json:"claimToClone"`
	// Clone: from that request to the machine's power-on, cloud-init ISO included.
	Clone Latency `json:"clone"`
	// Boot: from power-on to the first word of the bootstrap service.
	Boot Latency `json:"boot"`
	// Registered: from there to the runner being online.
	Registered Latency `json:"registered"`
	// JobStart: from there to the runner having a job.
	JobStart Latency `json:"jobStart"`
	// Destroyed: from the machine's end, seen by the operator, to the claim's.
	Destroyed Latency `json:"destroyed"`
	// Life: from claim to the end of the claim.
	Life Latency `json:"life"`
}

// phase is a name for people and the latency of it.
type phase struct {
	name    string
	latency Latency
}

func (l Latencies) phases() []phase {
	return []phase{
		{"queued -> clone asked", l.QueuedToClone},
		{"job received -> claim", l.ReceivedToClaim},
		{"claim -> clone asked", l.ClaimToClone},
		{"clone", l.Clone},
		{"boot", l.Boot},
		{"runner registered", l.Registered},
		{"job taken", l.JobStart},
		{"destroyed", l.Destroyed},
		{"whole life", l.Life},
	}
}

// latenciesOf computes the latencies from when jobs were received and from the claims,
// both earliest first.
func latenciesOf(received []time.Time, claims []claimRecord) Latencies {
	var toClaim []time.Duration

	for i, at := range received {
		if i < len(claims) {
			toClaim = append(toClaim, max(claims[i].created.Sub(at), 0))
		}
	}

	between := func(from, to func(claimRecord) time.Time) Latency {
		var samples []time.Duration

		for _, c := range claims {
			if a, b := from(c), to(c); !a.IsZero() && !b.IsZero() {
				samples = append(samples, max(b.Sub(a), 0))
			}
		}

		return latencyOf(samples)
	}

	created := func(c claimRecord) time.Time { return c.created }
	cloned := func(c claimRecord) time.Time { return moment(c.times.CloneStarted) }
	started := func(c claimRecord) time.Time { return moment(c.times.Started) }
	guest := func(c claimRecord) time.Time { return moment(c.times.GuestStarted) }
	ready := func(c claimRecord) time.Time { return moment(c.times.Ready) }
	job := func(c claimRecord) time.Time { return moment(c.times.JobStarted) }
	stopped := func(c claimRecord) time.Time { return moment(c.times.Stopped) }
	gone := func(c claimRecord) time.Time { return c.gone }

	return Latencies{
		ReceivedToClaim: latencyOf(toClaim),
		ClaimToClone:    between(created, cloned),
		Clone:           between(cloned, started),
		Boot:            between(started, guest),
		Registered:      between(guest, ready),
		JobStart:        between(ready, job),
		Destroyed:       between(stopped, gone),
		Life:            between(created, gone),
	}
}

// queuedToClone pairs jobs and clones in their order.
func queuedToClone(jobs []control.Job, claims []claimRecord) Latency {
	queued, asked := make([]time.Time, 0, len(jobs)), make([]time.Time, 0, len(claims))

	for i := range jobs {
		queued = append(queued, jobs[i].QueuedAt)
	}

	for i := range claims {
		if at := moment(claims[i].times.CloneStarted); !at.IsZero() {
			asked = append(asked, at)
		}
	}

	slices.SortFunc(queued, time.Time.Compare)
	slices.SortFunc(asked, time.Time.Compare)

	var samples []time.Duration
	for i := range min(len(queued), len(asked)) {
		samples = append(samples, max(asked[i].Sub(queued[i]), 0))
	}

	return latencyOf(samples)
}

func moment(t *metav1.MicroTime) time.Time {
	if t == nil {
		return time.Time{}
	}

	return t.Time
}

// span gives the time from the first of the starts to the last of the ends.
func span(starts, ends []time.Time) time.Duration {
	if len(starts) == 0 || len(ends) == 0 {
		return 0
	}

	return slices.MaxFunc(ends, time.Time.Compare).Sub(slices.MinFunc(starts, time.Time.Compare))
}

// latest gives the last of the times, or zero.
func latest(times []time.Time) time.Time {
	if len(times) == 0 {
		return time.Time{}
	}

	return slices.MaxFunc(times, time.Time.Compare)
}
