// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

// busyAgain is how soon a busy runner is asked for again.
const busyAgain = 10 * time.Second

// conditionDeregistered is that of the step that removes the runner.
const conditionDeregistered = "Deregistered"

// deregister removes the runner from the CI platform before its machine is touched. A
// runner that is busy stops the deletion, unless its machine is off anyway or its life
// is over by a limit that the user set.
func deregister(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.BootstrapInfo == nil || status.BootstrapInfo.RunnerName == "" || s.claim.Spec.Standby {
		return step.Done() // on standby there is no runner yet
	}

	status.Phase = v1alpha1.MachineClaimDraining

	if s.deregistered.has(s.claim) {
		return step.Done()
	}

	if result, waits := s.backingOff(conditionDeregistered); waits {
		return result
	}

	switch result := s.find(ctx); {
	case s.template != nil: // whatever became of the cluster
	case result.Reason() != reasonTemplateNotFound:
		return result
	default:
		return step.Done().WithReason("TemplateGone", "the runner was left to the CI platform: "+result.Message())
	}

	provider, err := s.Workloads.For(ctx, s.template, s.claim.Spec.WorkloadConfig)
	if errclass.Of(err) == errclass.Configuration {
		s.saidf(ctx, corev1.EventTypeWarning, "RunnerLeft", "Deregister", "runner %s was not removed: %s",
			status.BootstrapInfo.RunnerName, err.Error())

		return step.Done().WithReason("CredentialsGone", err.Error())
	}

	if err != nil {
		return s.failed(conditionDeregistered, err, "CredentialsUnavailable")
	}

	return s.removeRunner(ctx, provider)
}

func (s *scope) removeRunner(ctx context.Context, provider workload.Provider) step.Result {
	info := s.claim.Status.BootstrapInfo

	if result, waits := s.sharesListing(); waits {
		return result
	}

	runner, err := s.findRunner(ctx, provider)

	switch {
	case workload.Is(err, workload.NotFound):
		return s.runnerGone()
	case workload.Is(err, workload.Rejected):
		s.saidf(ctx, corev1.EventTypeWarning, "RunnerLeft", "Deregister", "runner %s was not removed: %s",
			info.RunnerName, err.Error())

		return step.Done().WithReason("RunnerLeft", err.Error())
	case err != nil:
		return s.failed(conditionDeregistered, err, "RunnerUnknown")
	}

	err = provider.Deregister(ctx, runner.ID)

	switch {
	case err == nil, workload.Is(err, workload.NotFound):
		return s.runnerGone()
	case workload.Is(err, workload.RunnerBusy) && s.mayInterrupt(ctx):
		return step.Done().WithReason("BusyRunnerLeft",
			fmt.Sprintf("runner %s is listed as busy, but its machine's life is over; it is removed when its job is",
				info.RunnerName))
	case workload.Is(err, workload.RunnerBusy):
		return step.Wait(busyAgain, "RunnerBusy",
			fmt.Sprintf("runner %s runs a job; its VM is removed when the job is over", info.RunnerName))
	default:
		return s.failed(conditionDeregistered, err, "DeregistrationFailed")
	}
}

// runnerGone keeps in mind that the runner is gone: later passes need not look for it.
func (s *scope) runnerGone() step.Result {
	s.deregistered.add(s.claim)

	return step.Done()
}

// findRunner finds the claim's runner by its name, which follows from the claim; or by the id of
// its job, where it is bound to one and the platform knows runners by that alone. Whatever
// runner the status names, and whatever job, it may be another's: both can be written by hand.
func (s *scope) findRunner(ctx context.Context, provider workload.Provider) (workload.Runner, error) {
	named, err := provider.Find(ctx, vmspec.RunnerName(s.claim), s.listingAge())
	info := s.claim.Status.BootstrapInfo

	if !workload.Is(err, workload.NotFound) || info.BoundJob == "" || info.RunnerID == "" {
		return named, err
	}

	var job v1alpha1.RunnerJob

	missing := s.Client.Get(ctx, types.NamespacedName{Namespace: s.claim.Namespace, Name: info.BoundJob}, &job)
	if apierrors.IsNotFound(missing) {
		return named, err
	}

	if missing != nil {
		return workload.Runner{}, fmt.Errorf("get job %s: %w", info.BoundJob, missing)
	}

	bound, found := provider.Find(ctx, job.Spec.ID, s.listingAge())
	if found == nil && !strings.EqualFold(bound.ID, job.Spec.ID) {
		return named, err
	}

	return bound, found
}

// listingAge is how old a listing of runners may be: it has to be of after the machine
// stopped, or else of now.
func (s *scope) listingAge() time.Duration {
	if stopped := s.times().Stopped; stopped != nil {
		return s.since(stopped)
	}

	return 0
}

// sharesListing has a claim whose machine has stopped wait a moment for a listing, where the
// last was just before the stop: a fleet whose machines stop one after the other would have
// one made for each.
func (s *scope) sharesListing() (step.Result, bool) {
	stopped := s.times().Stopped
	if stopped == nil {
		return step.Result{}, false
	}

	left := s.listings.wait(s.platformCause(), stopped.Time, s.Clock.Now())
	if left == 0 {
		return step.Result{}, false
	}

	return step.Wait(left, "RunnerLookedFor", fmt.Sprintf("runner %s is looked for with those of other stopped machines",
		s.claim.Status.BootstrapInfo.RunnerName)).Unhurried(), true
}

// mayInterrupt says whether a machine may go though its runner is said to be busy: it
// is off already, or a limit of the user's has ended it.
func (s *scope) mayInterrupt(ctx context.Context) bool {
	switch s.claim.Status.EndReason {
	case ReasonMaxLifetime, ReasonJobTimeout:
		return true
	}

	if s.times().Stopped != nil {
		return true
	}

	if s.provider == nil || s.claim.Status.VMRef == nil {
		return false
	}

	gone, result := s.look(ctx)

	return gone && result.IsDone()
}
