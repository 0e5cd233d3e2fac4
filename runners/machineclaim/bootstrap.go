// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// defaultBootstrapTimeout applies if the claim sets no bootstrap timeout.
const defaultBootstrapTimeout = 15 * time.Minute

// maxRunnerListAge is the maximum age of the CI platform's list of runners, in which bootstrap looks for the
// runner of a machine that sends no reports.
const maxRunnerListAge = 10 * time.Second

// bootstrap waits until the runner is online, according to the first of: the report of the machine, a job
// that the runner has taken, or the list of runners from the CI platform.
func bootstrap(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if s.times().Ready != nil || s.times().Stopped != nil {
		return step.Done()
	}

	if status.KeptUntil != nil {
		// Even if the machine reports success now.
		return s.deleteClaim(ctx, status.EndReason, "the machine failed, and its keep time is over")
	}

	if err := s.recordTakenJob(ctx); err != nil {
		return step.Fail(err)
	}

	if s.isOnline(ctx) {
		s.times().Ready = s.now()
		status.Phase = v1alpha1.MachineClaimReady
		s.observePhase(ctx, "bootstrapped", s.times().Started)

		return step.Done()
	}

	if result := s.endIfRefused(ctx, isCredentialRefusal); !result.IsDone() {
		return result
	}

	isGone, err := s.observeMachine(ctx)
	if err != nil {
		return waitForHypervisor(err)
	}

	if isGone {
		s.recordStopped(ctx, "BootstrapFailed")

		return step.Done().WithReason("BootstrapFailed", "the VM stopped before its runner was online")
	}

	timeout, remaining := s.bootstrapTimeout()
	if remaining <= 0 {
		return s.endMachine(ctx, "BootstrapTimeout", fmt.Sprintf("the runner was not online within %s of the VM's start", timeout))
	}

	result := step.Wait(min(remaining, pollInterval), "WaitingForRunner",
		fmt.Sprintf("the VM runs; the runner must be online within %s of its start", timeout))
	if s.claim.PoolName() == "" {
		return result.DeferWrite() // a person has created the claim and watches it
	}

	return result.DeferWriteFor(step.ProgressWriteDelay)
}

// bootstrapTimeout returns the bootstrap timeout of the claim, and how much of it is left since the VM was
// started.
func (s *scope) bootstrapTimeout() (timeout, remaining time.Duration) {
	timeout = defaultBootstrapTimeout
	if l := s.claim.Spec.Lifecycle; l != nil && l.BootstrapTimeout != nil {
		timeout = l.BootstrapTimeout.Duration
	}

	return timeout, timeout - s.elapsedSince(s.times().Started)
}

// recordTakenJob looks for the job that the runner has taken, and records it in the claim's status.
func (s *scope) recordTakenJob(ctx context.Context) error {
	info := s.claim.Status.BootstrapInfo
	if info.Job != "" {
		return nil
	}

	var jobs v1alpha1.RunnerJobList

	err := s.Client.List(ctx, &jobs, client.InNamespace(s.claim.Namespace),
		client.MatchingFields{demand.IndexRunnerName: info.RunnerName})
	if err != nil {
		return fmt.Errorf("list jobs of runner %s: %w", info.RunnerName, err)
	}

	if len(jobs.Items) == 0 {
		return nil
	}

	info.Job = jobs.Items[0].Name
	s.times().JobStarted = s.now()

	return nil
}

// isOnline reports whether the runner is or was online, according to the machine's report, its job, or the
// CI platform. It returns false if the CI platform is unavailable.
func (s *scope) isOnline(ctx context.Context) bool {
	info := s.claim.Status.BootstrapInfo

	switch guest.Phase(info.GuestPhase) {
	case guest.PhaseListening, guest.PhaseRunning, guest.PhaseFinished:
		return true
	default:
	}

	if info.Job != "" {
		return true
	}

	provider, err := s.Workloads.ProviderFor(ctx, s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return false
	}

	runner, err := provider.FindRunner(ctx, info.RunnerName, maxRunnerListAge)

	return err == nil && runner.Online
}

// powerOffTime is how long a guest takes to power off after it has reported that it does.
const powerOffTime = 2 * time.Second

// timeSinceShutdownNotice returns the time since the machine reported that it powers off, or 0 if it has not.
func (s *scope) timeSinceShutdownNotice() time.Duration {
	info := s.claim.Status.BootstrapInfo
	if info.ReportedAt == nil {
		return 0
	}

	if !guest.Phase(info.GuestPhase).Last() {
		return 0
	}

	return max(s.Clock.Since(info.ReportedAt.Time), 1) // 0 means no notice
}

// observeMachine reads the machine from the hypervisor, and records its node and addresses in the claim's
// status. isGone is true if the VM has stopped or does not exist. If the hypervisor does not tell, the step
// waits (waitForHypervisor).
func (s *scope) observeMachine(ctx context.Context) (isGone bool, err error) {
	ref := s.machineRef()
	ref.PowerOffReported = s.timeSinceShutdownNotice() > powerOffTime

	machine, err := s.provider.Get(ctx, ref)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		return true, nil
	case err != nil:
		return false, err
	}

	s.claim.Status.VMRef.Node = machine.Node

	info := s.claim.Status.NetworkInfo
	if machine.IP != "" {
		info.IPAddress = machine.IP
	}

	if machine.MAC != "" {
		info.MACAddress = machine.MAC
	}

	return machine.State == hypervisor.StateStopped, nil
}

// waitForHypervisor returns the result of a step that could not read the machine. The machine itself may be
// well, so it is neither a failure of the claim nor counted as one.
func waitForHypervisor(err error) step.Result {
	return step.Wait(pollInterval, "HypervisorUnavailable", err.Error())
}
