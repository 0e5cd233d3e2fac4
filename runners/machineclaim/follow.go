// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// follow watches the machine until it is off, and ends it where its life is too long.
func follow(ctx context.Context, s *scope) step.Result {
	if s.times().Stopped != nil {
		return step.Done()
	}

	if err := s.findJob(ctx); err != nil {
		return step.Fail(err)
	}

	gone, result := s.look(ctx)
	if !result.IsDone() {
		return result
	}

	if gone {
		s.stopped(ctx, howItEnded(s.claim.Status.BootstrapInfo))

		return step.Done()
	}

	verdict := deadline(limits(s.claim), s.moments(), s.Clock.Now())
	if verdict.reason != "" {
		return s.end(ctx, verdict.reason, verdict.message)
	}

	next := safety
	if verdict.next > 0 {
		next = min(next, verdict.next)
	}

	if s.sinceShutdownNotice() > 0 {
		return step.Steady(powerOff+powerOff/4, "PoweringOff", "the bootstrap service is done: the VM powers off").Unhurried()
	}

	if s.claim.Status.BootstrapInfo.Job != "" {
		return step.Steady(next, "JobRunning", "job "+s.claim.Status.BootstrapInfo.Job).Unhurried()
	}

	return step.Steady(next, "Idle", "the runner waits for a job").Unhurried()
}

// howItEnded reads the end of a machine out of what it reported and of its job. It is pure. Of
// what a machine says only known words count.
func howItEnded(info *v1alpha1.BootstrapInfo) string {
	finished := guest.Phase(info.GuestPhase) == guest.PhaseFinished

	switch {
	case guest.Phase(info.GuestPhase) == guest.PhaseFailed:
		return "GuestFailed"
	case finished && slices.Contains([]string{
		guest.ReasonJobGone, guest.ReasonIdleTimeout, guest.ReasonTerminated,
	}, info.GuestReason):
		return info.GuestReason
	case info.Job != "", finished && slices.Contains([]string{guest.ReasonJobDone, ""}, info.GuestReason):
		return guest.ReasonJobDone
	default:
		return "VMStopped"
	}
}

// stopped notes that the machine is off or gone, and why. The end of a job is told when
// nothing is left of its machine.
func (s *scope) stopped(ctx context.Context, reason string) {
	s.times().Stopped = s.micro()
	s.markEnded(reason)
	s.claim.Status.Phase = v1alpha1.MachineClaimTerminating

	if reason == guest.ReasonJobDone {
		s.phaseTook(ctx, "job", s.times().JobStarted)

		return
	}

	s.eventf(ctx, corev1.EventTypeWarning, "VMStopped", "Follow", "VM %s is off: %s %s",
		s.claim.Status.VMRef.VMID, reason, s.claim.Status.BootstrapInfo.GuestMessage)
}

// end ends a machine that still runs.
func (s *scope) end(ctx context.Context, reason, message string) step.Result {
	s.claim.Status.Phase = v1alpha1.MachineClaimDraining

	if s.markEnded(reason) {
		s.eventf(ctx, corev1.EventTypeWarning, reason, "Follow", "%s", message)
	}

	return s.remove(ctx, reason, message)
}

// moments are the times of a machine's life that limits are measured from.
type moments struct {
	created, ready, jobStarted time.Time
}

func (s *scope) moments() moments {
	m := moments{created: s.claim.CreationTimestamp.Time}
	if t := s.times().Ready; t != nil {
		m.ready = t.Time
	}

	if t := s.times().JobStarted; t != nil {
		m.jobStarted = t.Time
	}

	return m
}

// limit holds the limits that count; zero means none.
type limit struct {
	maxLifetime, idle, job time.Duration
}

func limits(claim *v1alpha1.MachineClaim) limit {
	lifecycle := claim.Spec.Lifecycle
	if lifecycle == nil {
		return limit{}
	}

	return limit{
		maxLifetime: of(lifecycle.MaxLifetime), idle: of(lifecycle.IdleTimeout), job: of(lifecycle.JobTimeout),
	}
}

func of(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}

	return d.Duration
}

// verdict says whether a machine's life is over, or when to ask again.
type verdict struct {
	reason, message string
	next            time.Duration
}

// deadline judges a running machine by its limits. It is pure.
func deadline(l limit, m moments, now time.Time) verdict {
	var v verdict

	check := func(limit time.Duration, since time.Time, reason, what string) {
		if limit <= 0 || since.IsZero() || v.reason != "" {
			return
		}

		left := limit - now.Sub(since)

		switch {
		case left <= 0:
			v.reason, v.message = reason, fmt.Sprintf("%s for longer than %s", what, limit)
		case v.next == 0 || left < v.next:
			v.next = left
		}
	}

	check(l.maxLifetime, m.created, ReasonMaxLifetime, "the machine has lived")
	check(l.job, m.jobStarted, ReasonJobTimeout, "the job has run")

	if m.jobStarted.IsZero() {
		check(l.idle, m.ready, ReasonIdleTimeout, "the runner has been idle")
	}

	return v
}

// Reasons that end a running machine.
const (
	ReasonMaxLifetime = "MaxLifetime"
	ReasonIdleTimeout = guest.ReasonIdleTimeout
	ReasonJobTimeout  = guest.ReasonJobTimeout
)
