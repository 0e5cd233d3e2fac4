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

// follow watches the machine until it is off, and ends it if it exceeds a lifetime limit.
func follow(ctx context.Context, s *scope) step.Result {
	if s.times().Stopped != nil {
		return step.Done()
	}

	if err := s.recordTakenJob(ctx); err != nil {
		return step.Fail(err)
	}

	isGone, err := s.observeMachine(ctx)
	if err != nil {
		return waitForHypervisor(err)
	}

	if isGone {
		s.recordStopped(ctx, endReasonOf(s.claim.Status.BootstrapInfo))

		return step.Done()
	}

	expiry := checkLimits(limitsOf(s.claim), s.milestones(), s.Clock.Now())
	if expiry.reason != "" {
		return s.endMachine(ctx, expiry.reason, expiry.message)
	}

	next := resyncInterval
	if expiry.remaining > 0 {
		next = min(next, expiry.remaining)
	}

	if s.timeSinceShutdownNotice() > 0 {
		return step.WaitReady(powerOffTime+powerOffTime/4, "PoweringOff",
			"the bootstrap service has finished; the VM powers off").DeferWrite()
	}

	if s.claim.Status.BootstrapInfo.Job != "" {
		result := step.WaitReady(next, "JobRunning", "job "+s.claim.Status.BootstrapInfo.Job)
		if s.isReadyRecorded(ctx) {
			return result.DeferWriteFor(step.ProgressWriteDelay) // the RunnerJob has the runner
		}

		return result.DeferWrite()
	}

	return step.WaitReady(next, "Idle", "the runner waits for a job").DeferWrite()
}

// endReasonOf derives the end reason of a machine from its report and its job. It accepts only known
// reasons, because the report is untrusted. It is pure.
func endReasonOf(info *v1alpha1.BootstrapInfo) string {
	hasFinished := guest.Phase(info.GuestPhase) == guest.PhaseFinished

	switch {
	case guest.Phase(info.GuestPhase) == guest.PhaseFailed:
		return "GuestFailed"
	case hasFinished && slices.Contains([]string{
		guest.ReasonJobGone, guest.ReasonIdleTimeout, guest.ReasonTerminated,
	}, info.GuestReason):
		return info.GuestReason
	case info.Job != "", hasFinished && slices.Contains([]string{guest.ReasonJobDone, ""}, info.GuestReason):
		return guest.ReasonJobDone
	default:
		return "VMStopped"
	}
}

// recordStopped records that the VM is off or deleted, and the reason. It emits no event if the job is
// done, because emitDestroyed emits an event later.
func (s *scope) recordStopped(ctx context.Context, reason string) {
	s.times().Stopped = s.now()
	s.setEnded(reason)
	s.claim.Status.Phase = v1alpha1.MachineClaimTerminating

	if reason == guest.ReasonJobDone {
		s.observePhase(ctx, "job", s.times().JobStarted)

		return
	}

	s.eventf(ctx, corev1.EventTypeWarning, "VMStopped", "Follow", "VM %s is off: %s %s",
		s.claim.Status.VMRef.VMID, reason, s.claim.Status.BootstrapInfo.GuestMessage)
}

// endMachine ends a machine that still runs: it records the reason, and deletes the claim.
func (s *scope) endMachine(ctx context.Context, reason, message string) step.Result {
	s.claim.Status.Phase = v1alpha1.MachineClaimDraining

	if s.setEnded(reason) {
		s.eventf(ctx, corev1.EventTypeWarning, reason, "Follow", "%s", message)
	}

	return s.deleteClaim(ctx, reason, message)
}

// milestones holds the times at which the lifetime limits of a machine start. A zero time means not reached.
type milestones struct {
	created, ready, jobStarted time.Time
}

func (s *scope) milestones() milestones {
	m := milestones{created: s.claim.CreationTimestamp.Time}
	if t := s.times().Ready; t != nil {
		m.ready = t.Time
	}

	if t := s.times().JobStarted; t != nil {
		m.jobStarted = t.Time
	}

	return m
}

// lifetimeLimits holds the lifetime limits of a machine. Zero means no limit.
type lifetimeLimits struct {
	maxLifetime, idle, job time.Duration
}

func limitsOf(claim *v1alpha1.MachineClaim) lifetimeLimits {
	lifecycle := claim.Spec.Lifecycle
	if lifecycle == nil {
		return lifetimeLimits{}
	}

	return lifetimeLimits{
		maxLifetime: toDuration(lifecycle.MaxLifetime), idle: toDuration(lifecycle.IdleTimeout),
		job: toDuration(lifecycle.JobTimeout),
	}
}

func toDuration(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}

	return d.Duration
}

// limitCheck is the result of a check of the limits: the reason and message if a limit is exceeded, or the
// time until the next limit, which is 0 if no limit applies.
type limitCheck struct {
	reason, message string
	remaining       time.Duration
}

// checkLimits checks the limits of a running machine. The idle limit applies only until a job has started.
// checkLimits is pure.
func checkLimits(l lifetimeLimits, m milestones, now time.Time) limitCheck {
	var out limitCheck

	check := func(limit time.Duration, since time.Time, reason, subject string) {
		if limit <= 0 || since.IsZero() || out.reason != "" {
			return
		}

		remaining := limit - now.Sub(since)

		if remaining <= 0 {
			out.reason, out.message = reason, fmt.Sprintf("%s for longer than %s", subject, limit)

			return
		}

		out.remaining = step.ChooseSooner(out.remaining, remaining)
	}

	check(l.maxLifetime, m.created, ReasonMaxLifetime, "the machine has existed")
	check(l.job, m.jobStarted, ReasonJobTimeout, "the job has run")

	if m.jobStarted.IsZero() {
		check(l.idle, m.ready, ReasonIdleTimeout, "the runner has been idle")
	}

	return out
}

// End reasons of a machine that has exceeded a limit.
const (
	ReasonMaxLifetime = "MaxLifetime"
	ReasonIdleTimeout = guest.ReasonIdleTimeout
	ReasonJobTimeout  = guest.ReasonJobTimeout
)
