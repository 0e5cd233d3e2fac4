// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/workload"
)

// A step that fails is left alone for firstPause, and for twice as long after each further
// failure, up to lastPause: seven tries in the first minute, and one a minute from then on.
// The jitter keeps claims that failed together from coming back together.
const (
	firstPause  = time.Second
	lastPause   = time.Minute
	pauseJitter = 0.2
)

// pauseAfter gives how long a step is left alone after so many failures in a row, without
// jitter. It is pure.
func pauseAfter(failures int32) time.Duration {
	pause := firstPause
	for range failures - 1 {
		if pause *= 2; pause >= lastPause {
			return lastPause
		}
	}

	return pause
}

// backingOff says that a step is not to be tried yet, in the words of its last failure:
// whatever woke the claim, nothing is called.
func (s *scope) backingOff(condition string) (step.Result, bool) {
	backoff, _ := s.lastTries()
	if backoff == nil || backoff.Step != condition {
		return step.Result{}, false
	}

	left := backoff.Until.Sub(s.Clock.Now())
	if left <= 0 {
		return step.Result{}, false
	}

	return s.waitAs(condition, left), true
}

// lastTries are what is on record of the claim's tries, or what this process has put there
// since the claim was read.
func (s *scope) lastTries() (*v1alpha1.Backoff, int32) {
	status := &s.claim.Status

	known, ok := s.causes.noted(client.ObjectKeyFromObject(s.claim))
	if !ok || status.Backoff != nil && !status.Backoff.Until.Before(&known.backoff.Until) {
		return status.Backoff, status.Attempts
	}

	return &known.backoff, max(known.attempts, status.Attempts)
}

// waitAs waits with the words that the condition has.
func (s *scope) waitAs(condition string, left time.Duration) step.Result {
	last := meta.FindStatusCondition(s.claim.Status.Conditions, condition)
	if last == nil || last.Status == metav1.ConditionTrue {
		return step.Wait(left, "BackingOff", "the last try failed")
	}

	return step.Wait(left, last.Reason, last.Message)
}

// failed turns an error of a call outside into a result, and puts on record when the step is
// tried again.
func (s *scope) failed(condition string, err error, fallback string) step.Result {
	if interrupted(err) {
		return step.Fail(err)
	}

	result := connect.Outcome(err, lookAgain, fallback)
	status := &s.claim.Status
	now := s.Clock.Now()

	failures := int32(1)
	if last, _ := s.lastTries(); last != nil && last.Step == condition {
		failures = last.Failures + 1
	}

	pause := max(wait.Jitter(pauseAfter(failures), pauseJitter), result.Pause())
	status.Backoff = &v1alpha1.Backoff{Step: condition, Failures: failures, Until: metav1.NewMicroTime(now.Add(pause))}
	s.causes.note(client.ObjectKeyFromObject(s.claim), tries{backoff: *status.Backoff, attempts: status.Attempts})

	pause = max(pause, s.causes.failed(s.causeOf(err), client.ObjectKeyFromObject(s.claim), now, result.Message()))

	if result.IsStalled() {
		return result
	}

	return result.After(pause)
}

// interrupted says that nothing has failed: it is done again on a fresh copy of the claim, or
// by the next process.
func interrupted(err error) bool {
	return apierrors.IsConflict(err) || errors.Is(err, context.Canceled)
}

// worked notes that the step that may have failed before has not.
func (s *scope) worked(cause string) {
	s.claim.Status.Backoff = nil
	s.causes.drop(client.ObjectKeyFromObject(s.claim))

	for _, name := range s.causes.worked(cause) {
		s.Trigger.Enqueue(name)
	}
}

// causeOf names what an error is the fault of: the node that the machine is made on, the
// hypervisor where there is none yet, the CI platform, or the identity provider.
func (s *scope) causeOf(err error) string {
	if _, ok := errors.AsType[*workload.Error](err); ok {
		return s.platformCause()
	}

	if _, ok := errors.AsType[*identity.Error](err); ok {
		return "identity"
	}

	return s.hypervisorCause()
}

func (s *scope) hypervisorCause() string {
	if vm := s.claim.Status.VMRef; vm != nil {
		return "cluster " + vm.HypervisorCluster + " node " + vm.Node
	}

	if s.cluster != nil {
		return "cluster " + s.cluster.Name
	}

	return "cluster"
}

func (s *scope) platformCause() string {
	if s.template == nil {
		return "platform"
	}

	runner, err := s.Workloads.Runner(s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return "platform"
	}

	return strings.Join([]string{
		"platform", runner.Platform, runner.Scope.Server, runner.Scope.Enterprise, runner.Scope.Organization,
		runner.Scope.Repository,
	}, " ")
}

// makingFailed is failed for the making of a machine: after as many tries as are allowed the
// claim has failed, and its pool makes another.
func (s *scope) makingFailed(condition string, err error, fallback string) step.Result {
	status := &s.claim.Status

	if _, attempts := s.lastTries(); !interrupted(err) {
		status.Attempts = attempts

		if countsAsAttempt(err) {
			status.Attempts++
		}
	}

	result := s.failed(condition, err, fallback)
	if interrupted(err) {
		return result
	}

	if !result.IsStalled() && s.MaxAttempts > 0 && int(status.Attempts) >= s.MaxAttempts {
		result = step.Stall(result.Reason(), fmt.Sprintf("given up after %d tries: %s", status.Attempts, result.Message()))
	}

	if result.IsStalled() {
		s.causes.note(client.ObjectKeyFromObject(s.claim), tries{
			backoff: *status.Backoff, attempts: status.Attempts, ended: true, reason: result.Reason(), message: result.Message(),
		})

		return s.hasFailed(result)
	}

	return result
}

// hasFailed has the claim's life end for the result.
func (s *scope) hasFailed(result step.Result) step.Result {
	s.claim.Status.Phase = v1alpha1.MachineClaimFailed
	s.markEnded(result.Reason())

	return result
}

// gaveUp says that the claim has failed, though the write that said so was refused.
func (s *scope) gaveUp() (step.Result, bool) {
	name := client.ObjectKeyFromObject(s.claim)

	known, ok := s.causes.noted(name)
	if !ok || !known.ended {
		return step.Result{}, false
	}

	if s.claim.Status.Phase == v1alpha1.MachineClaimFailed {
		known.ended = false // it is on record, and what is tried from now on begins anew
		s.causes.note(name, known)

		return step.Result{}, false
	}

	s.claim.Status.Attempts, s.claim.Status.Backoff = known.attempts, &known.backoff

	return s.hasFailed(step.Stall(known.reason, known.message)), true
}

// countsAsAttempt says whether an error is a try that failed. One that was not made, since a
// server does not answer, is locked or asks for patience, is none: another machine would fare
// no better.
func countsAsAttempt(err error) bool {
	if e, ok := errors.AsType[*workload.Error](err); ok {
		return e.Kind == workload.Rejected || e.Kind == workload.NotFound
	}

	if _, ok := errors.AsType[*identity.Error](err); ok {
		return false
	}

	switch hypervisor.KindOf(err) {
	case hypervisor.Busy, hypervisor.Unavailable, hypervisor.IDTaken:
		return false
	default:
		return true
	}
}

// admitted says whether the claim may begin with what is in trouble for others: while a cause
// has claims fail, all of them together try once a second.
func (s *scope) admitted(condition string, causes ...string) (step.Result, bool) {
	name, now := client.ObjectKeyFromObject(s.claim), s.Clock.Now()

	for _, cause := range causes {
		left, last := s.causes.admit(cause, name, now)
		if left <= 0 {
			continue
		}

		if backoff := s.claim.Status.Backoff; backoff != nil && backoff.Step == condition {
			return s.waitAs(condition, left), false
		}

		return step.Wait(left, "BackingOff", "other machines fail: "+last), false
	}

	return step.Result{}, true
}
