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

// The back-off of a failed step is initialBackoff, and doubles after each further failure up to maxBackoff:
// seven attempts in the first minute, then one attempt a minute. The jitter spreads the retries of claims
// that failed at the same time.
const (
	initialBackoff = time.Second
	maxBackoff     = time.Minute
	backoffJitter  = 0.2
	// failedBackoff is the back-off of a claim without a pool that has failed. A person has to act first.
	failedBackoff = 10 * time.Minute
)

// backoffAfter returns the back-off, without jitter, after the given number of consecutive failures. It is
// pure.
func backoffAfter(failures int32) time.Duration {
	delay := initialBackoff
	for range failures - 1 {
		if delay *= 2; delay >= maxBackoff {
			return maxBackoff
		}
	}

	return delay
}

// checkBackoff returns Done if the back-off of the step is over. Otherwise it returns a wait with the reason
// and message of the last failure. The step must not call any API in this case, whatever has enqueued the
// claim. condition is the step's condition, which also names the step in the back-off.
func (s *scope) checkBackoff(condition string) step.Result {
	backoff, _ := s.lastAttempts()
	if backoff == nil || backoff.Step != condition {
		return step.Done()
	}

	remaining := backoff.Until.Sub(s.Clock.Now())
	if remaining <= 0 {
		return step.Done()
	}

	return s.waitWithLastFailure(condition, remaining)
}

// checkCreateBackoff is checkBackoff for the steps that create a machine. A claim that has failed stays stalled during its
// back-off, whatever has enqueued it, because that may be the fix. A claim of a pool stays so until its pool deletes it and
// creates another claim.
func (s *scope) checkCreateBackoff(condition string) step.Result {
	if result := s.restoreFailure(condition); !result.IsDone() {
		return result
	}

	result, last := s.checkBackoff(condition), meta.FindStatusCondition(s.claim.Status.Conditions, condition)
	isFailed := s.claim.Status.Phase == v1alpha1.MachineClaimFailed && last != nil && last.Status == metav1.ConditionFalse

	if isFailed && (s.claim.PoolName() != "" || !result.IsDone()) {
		return step.Stall(last.Reason, last.Message).WithRetryAfter(result.RequeueAfter())
	}

	return result
}

// lastAttempts returns the back-off and the number of failed attempts of the claim. They come from the
// claim's status, or from memory if this process has recorded newer values since the claim was read.
func (s *scope) lastAttempts() (backoff *v1alpha1.Backoff, failedAttempts int32) {
	status := &s.claim.Status

	record, ok := s.breakers.attemptsOf(client.ObjectKeyFromObject(s.claim))
	if !ok || status.Backoff != nil && !status.Backoff.Until.Before(&record.backoff.Until) {
		return status.Backoff, status.Attempts
	}

	return &record.backoff, max(record.attempts, status.Attempts)
}

// waitWithLastFailure returns a wait with the reason and message of the last failure in the condition.
func (s *scope) waitWithLastFailure(condition string, remaining time.Duration) step.Result {
	last := meta.FindStatusCondition(s.claim.Status.Conditions, condition)
	if last == nil || last.Status == metav1.ConditionTrue {
		return step.Wait(remaining, "BackingOff", "the last attempt failed")
	}

	return step.Wait(remaining, last.Reason, last.Message)
}

// handleError converts an error of an external API call to a result, and records the back-off of the step.
// An interrupted call is no failure and gets no back-off.
func (s *scope) handleError(condition string, err error, fallback string) step.Result {
	if isInterrupted(err) {
		return step.Fail(err)
	}

	result := connect.NewErrorResult(err, pollInterval, fallback)
	shared := result.Message() // other claims show it, too
	result = nameOwnFields(s.claim, result)
	status := &s.claim.Status
	now := s.Clock.Now()

	failures := int32(1)
	if last, _ := s.lastAttempts(); last != nil && last.Step == condition {
		failures = last.Failures + 1
	}

	delay := max(wait.Jitter(backoffAfter(failures), backoffJitter), result.RequeueAfter())
	status.Backoff = &v1alpha1.Backoff{Step: condition, Failures: failures, Until: metav1.NewMicroTime(now.Add(delay))}
	s.breakers.recordAttempts(client.ObjectKeyFromObject(s.claim), attemptRecord{
		backoff: *status.Backoff, attempts: status.Attempts,
	})

	delay = max(delay, s.breakers.recordFailure(s.causeOf(err), client.ObjectKeyFromObject(s.claim), now, shared))

	if result.IsStalled() {
		return result
	}

	return result.WithRetryAfter(delay)
}

// isInterrupted reports whether the error is a conflict or a canceled context. Then nothing has failed: the
// controller retries with a fresh copy of the claim, or the next process does.
func isInterrupted(err error) bool {
	return apierrors.IsConflict(err) || errors.Is(err, context.Canceled)
}

// recordSuccess clears the back-off and the failed attempts of the claim. It also closes the circuit breaker
// of a cause, because the cause no longer makes calls fail, and enqueues the claims that waited for their turns.
func (s *scope) recordSuccess(cause string) {
	s.claim.Status.Backoff = nil
	s.breakers.dropAttempts(client.ObjectKeyFromObject(s.claim))

	for _, name := range s.breakers.closeBreaker(cause) {
		s.Trigger.Enqueue(name)
	}
}

// causeOf returns the cause of an error. Each cause has its own circuit breaker. It is the node on which the
// machine is created, the hypervisor cluster if the machine has no node yet, the scope at the CI platform, or
// the identity provider.
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

	runner, err := s.Workloads.ResolveRunner(s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return "platform"
	}

	return strings.Join([]string{
		"platform", runner.Platform, runner.Scope.Server, runner.Scope.Enterprise, runner.Scope.Organization,
		runner.Scope.Repository,
	}, " ")
}

// handleCreateError is like handleError for the steps that create a machine. It also counts attempts. After
// MaxAttempts attempts, or if the result is stalled, the claim fails, and its pool creates another claim.
func (s *scope) handleCreateError(condition string, err error, fallback string) step.Result {
	status := &s.claim.Status

	if _, attempts := s.lastAttempts(); !isInterrupted(err) {
		status.Attempts = attempts

		if isAttempt(err) {
			status.Attempts++
		}
	}

	result := s.handleError(condition, err, fallback)
	if isInterrupted(err) {
		return result
	}

	if !result.IsStalled() && s.MaxAttempts > 0 && int(status.Attempts) >= s.MaxAttempts {
		result = step.Stall(result.Reason(), fmt.Sprintf("failed after %d attempts: %s", status.Attempts, result.Message()))
	}

	if result.IsStalled() {
		// A failed placement has no such back-off: a change of the template enqueues the claim, and may be the fix.
		if condition == v1alpha1.ConditionProvisioned {
			status.Backoff.Until = metav1.NewMicroTime(s.Clock.Now().Add(failedBackoff))
		}

		s.breakers.recordAttempts(client.ObjectKeyFromObject(s.claim), attemptRecord{
			backoff: *status.Backoff, attempts: status.Attempts, hasFailed: true, reason: result.Reason(), message: result.Message(),
		})

		return s.failClaim(result)
	}

	return result
}

// failClaim sets the claim to phase Failed and records the reason of the result as its end reason.
func (s *scope) failClaim(result step.Result) step.Result {
	s.claim.Status.Phase = v1alpha1.MachineClaimFailed
	s.setEnded(result.Reason())

	return result
}

// restoreFailure fails the claim again if the step of the condition has failed it before but the API server refused the
// status update. Otherwise it returns Done.
func (s *scope) restoreFailure(condition string) step.Result {
	name := client.ObjectKeyFromObject(s.claim)

	record, ok := s.breakers.attemptsOf(name)
	if !ok || !record.hasFailed || record.backoff.Step != condition {
		return step.Done()
	}

	if s.claim.Status.Phase == v1alpha1.MachineClaimFailed {
		record.hasFailed = false // the failure is recorded
		s.breakers.recordAttempts(name, record)

		return step.Done()
	}

	s.claim.Status.Attempts, s.claim.Status.Backoff = record.attempts, &record.backoff

	return s.failClaim(step.Stall(record.reason, record.message))
}

// isAttempt reports whether an error counts as a failed attempt. An error because a server is unreachable,
// busy or rate-limited does not count, because another machine would fail in the same way.
func isAttempt(err error) bool {
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

// admit checks the circuit breakers of the given causes. While a breaker is open, only one claim a second
// may make an attempt. If the claim must wait, admit returns a wait with the message of the last failure,
// and otherwise Done.
func (s *scope) admit(condition string, causes ...string) step.Result {
	name, now := client.ObjectKeyFromObject(s.claim), s.Clock.Now()

	for _, cause := range causes {
		remaining, last := s.breakers.admit(cause, name, now)
		if remaining <= 0 {
			continue
		}

		if backoff := s.claim.Status.Backoff; backoff != nil && backoff.Step == condition {
			return s.waitWithLastFailure(condition, remaining)
		}

		return nameOwnFields(s.claim, step.Wait(remaining, "BackingOff", "other machines fail with: "+last))
	}

	return step.Done()
}
