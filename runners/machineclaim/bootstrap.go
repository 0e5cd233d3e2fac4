// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// defaultBootstrapTimeout holds where a claim names none.
const defaultBootstrapTimeout = 15 * time.Minute

// listingAge is how old the CI platform's listing of runners may be when a machine
// that reports nothing is looked for in it.
const listingAge = 10 * time.Second

// bootstrap waits for the runner to be online, by whoever says so first: the machine,
// a job it took, or the CI platform's listing.
func bootstrap(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if s.times().Ready != nil || s.times().Stopped != nil {
		return step.Done()
	}

	if status.KeptUntil != nil {
		return s.remove(ctx, status.EndReason, "it failed, and was kept for a while") // whatever it says of itself by now
	}

	if err := s.findJob(ctx); err != nil {
		return step.Fail(err)
	}

	if s.online(ctx) {
		s.times().Ready = s.micro()
		status.Phase = v1alpha1.MachineClaimReady
		s.phaseTook(ctx, "bootstrapped", s.times().Started)
		s.eventf(ctx, corev1.EventTypeNormal, "RunnerOnline", "Bootstrap", "runner %s is online", status.BootstrapInfo.RunnerName)

		return step.Done()
	}

	if result, ended := s.refused(ctx, noCredential); ended {
		return result
	}

	gone, result := s.look(ctx)
	if !result.IsDone() {
		return result
	}

	if gone {
		s.stopped(ctx, "BootstrapFailed")

		return step.Done().WithReason("BootstrapFailed", "the VM stopped before its runner was online")
	}

	result, message := s.await("WaitingForRunner", "its runner has to be online", "the runner was not online")
	if message != "" {
		return s.end(ctx, "BootstrapTimeout", message)
	}

	return result
}

// await waits within the bootstrap timeout for something to come about, and says in words
// that it did not.
func (s *scope) await(waiting, what, failed string) (step.Result, string) {
	timeout := defaultBootstrapTimeout
	if l := s.claim.Spec.Lifecycle; l != nil && l.BootstrapTimeout != nil {
		timeout = l.BootstrapTimeout.Duration
	}

	left := timeout - s.since(s.times().Started)
	if left > 0 {
		return step.Wait(min(left, lookAgain), waiting,
			fmt.Sprintf("the VM runs; %s within %s of its start", what, timeout)).Unhurried(), ""
	}

	return step.Result{}, fmt.Sprintf("%s within %s of the VM's start", failed, timeout)
}

// findJob finds the job that the runner took.
func (s *scope) findJob(ctx context.Context) error {
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
	s.times().JobStarted = s.micro()

	return nil
}

// online says whether anybody has seen the runner online.
func (s *scope) online(ctx context.Context) bool {
	info := s.claim.Status.BootstrapInfo

	switch guest.Phase(info.GuestPhase) {
	case guest.PhaseListening, guest.PhaseRunning, guest.PhaseFinished:
		return true
	default:
	}

	if info.Job != "" {
		return true
	}

	provider, err := s.Workloads.For(ctx, s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return false
	}

	runner, err := provider.Find(ctx, info.RunnerName, listingAge)

	return err == nil && runner.Online
}

// powerOff is how long a guest takes to power off once it has said that it will.
const powerOff = 2 * time.Second

// sinceShutdownNotice is how long ago the machine said that it powers off; 0 if it has not.
func (s *scope) sinceShutdownNotice() time.Duration {
	info := s.claim.Status.BootstrapInfo
	if info.ReportedAt == nil {
		return 0
	}

	if !guest.Phase(info.GuestPhase).Last() {
		return 0
	}

	return max(s.Clock.Since(info.ReportedAt.Time), 1)
}

// look sees whether the machine has stopped or vanished, and notes its addresses.
func (s *scope) look(ctx context.Context) (bool, step.Result) {
	ref := s.ref()
	ref.Suspect = s.sinceShutdownNotice() > powerOff

	seen, err := s.provider.Get(ctx, ref)

	switch {
	case hypervisor.Is(err, hypervisor.NotFound):
		return true, step.Done()
	case err != nil:
		return false, step.Wait(lookAgain, "HypervisorUnavailable", err.Error())
	}

	s.claim.Status.VMRef.Node = seen.Node

	info := s.claim.Status.NetworkInfo
	if seen.IP != "" {
		info.IPAddress = seen.IP
	}

	if seen.MAC != "" {
		info.MACAddress = seen.MAC
	}

	return seen.State == hypervisor.StateStopped, step.Done()
}
