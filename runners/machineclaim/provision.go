// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

// provision creates the VM and powers it on, unless the machine is on standby.
func provision(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if s.times().Started != nil {
		return step.Done()
	}

	if isGone, err := s.isMachineGoneAfterRun(ctx); err != nil {
		return step.Fail(err)
	} else if isGone {
		s.completeProvision(ctx)

		return step.Done()
	}

	if result := s.checkProvisionBackoff(); !result.IsDone() {
		return result
	}

	if result := s.recheckAccess(ctx); !result.IsDone() {
		return result
	}

	if err := s.recordCreateRequest(ctx); err != nil {
		return step.Fail(err)
	}

	machine, err := s.createMachine(ctx)
	if hypervisor.Is(err, hypervisor.IDTaken) {
		return s.releaseID(ctx, err)
	}

	if result := waitForJobs(err); !result.IsDone() {
		return result
	}

	if errors.Is(err, errNoJob) {
		return s.endMachine(ctx, v1alpha1.EndReasonNoJob, errNoJob.Error())
	}

	if errors.Is(err, errJobGone) {
		return s.endMachine(ctx, guest.ReasonJobGone, err.Error())
	}

	if err != nil {
		return s.handleCreateError(v1alpha1.ConditionProvisioned, err, "ProvisioningFailed")
	}

	status.VMRef.Node = machine.Node

	if machine.MAC != "" {
		status.NetworkInfo.MACAddress = machine.MAC
	}

	if machine.Cloned && s.times().Cloned == nil {
		s.times().Cloned = s.now()
	}

	switch machine.State {
	case hypervisor.StatePrepared:
		status.Phase, status.Attempts = v1alpha1.MachineClaimProvisioning, 0
		s.recordSuccess(s.hypervisorCause())

		return s.checkStandby(ctx)
	case hypervisor.StateRunning, hypervisor.StateStopped:
		s.completeProvision(ctx)

		return step.Done()
	default:
		status.Phase = v1alpha1.MachineClaimProvisioning

		return step.Wait(pollInterval, string(machine.State), machine.Message).DeferWriteFor(s.creationWriteDelay())
	}
}

// creationWriteDelay returns how late the progress of a creation may be written. A pool may replace a machine that had no
// capacity, and must see at once that this one is started after all.
func (s *scope) creationWriteDelay() time.Duration {
	before := meta.FindStatusCondition(s.claim.Status.Conditions, v1alpha1.ConditionProvisioned)
	if before != nil && v1alpha1.IsNoCapacity(before.Reason) {
		return 0
	}

	return step.ProgressWriteDelay
}

// isMachineGoneAfterRun reports whether the VM has run and no longer exists. The operator does not know of the start if the
// hypervisor's response was lost, so the proof is a report of the machine, or a job of its runner. Such a machine is not
// created again.
func (s *scope) isMachineGoneAfterRun(ctx context.Context) (bool, error) {
	info := s.claim.Status.BootstrapInfo
	if s.claim.Spec.Standby || s.times().CloneStarted == nil || info.RunnerName == "" {
		return false, nil
	}

	if info.ReportedAt == nil {
		if err := s.recordTakenJob(ctx); err != nil {
			return false, err
		}
	}

	if info.ReportedAt == nil && info.Job == "" {
		return false, nil
	}

	_, err := s.provider.Get(ctx, s.machineRef())

	return hypervisor.Is(err, hypervisor.NotFound), nil
}

// completeProvision records that the machine was started.
func (s *scope) completeProvision(ctx context.Context) {
	status := &s.claim.Status
	status.Phase, status.Attempts = v1alpha1.MachineClaimBootstrapping, 0
	s.recordSuccess(s.hypervisorCause())
	s.setStarted()
	s.observePhase(ctx, "provisioned", s.requestedAt())
}

// recordCreateRequest records in the claim's status, before the call, that the hypervisor is requested to
// create or start the machine. The write also holds the ID and the node of the machine, and its job.
func (s *scope) recordCreateRequest(ctx context.Context) error {
	hasChanged := s.recordActivation() || !s.isBindingRecorded(ctx)

	if s.times().CloneStarted == nil {
		s.times().CloneStarted = s.now()
		hasChanged = true

		if s.template.Spec.Bootstrap.Method == v1alpha1.BootstrapCallback && !s.claim.Spec.Standby && !s.hasIdentity() {
			s.setOffer() // the same write
		}
	}

	if !hasChanged {
		return nil
	}

	result := step.Wait(pollInterval, string(hypervisor.StateCreating), "creating the VM at the hypervisor")

	return step.SaveStatusWithResult(ctx, result)
}

// checkProvisionBackoff returns Done if the hypervisor may be called in this reconcile. It must not be
// called if the claim has failed, its back-off is not over, or a circuit breaker is open. A machine that is
// being created without errors is not stopped by the circuit breakers.
func (s *scope) checkProvisionBackoff() step.Result {
	status := &s.claim.Status

	if result := s.checkCreateBackoff(v1alpha1.ConditionProvisioned); !result.IsDone() {
		return result
	}

	if status.Backoff == nil && s.times().CloneStarted != nil {
		return step.Done()
	}

	causes := []string{s.hypervisorCause()}
	if !s.claim.Spec.Standby && status.BootstrapInfo.RunnerID == "" {
		causes = append(causes, s.platformCause())
	}

	return s.admit(v1alpha1.ConditionProvisioned, causes...)
}

// createMachine creates the VM and starts it, unless the machine is on standby.
func (s *scope) createMachine(ctx context.Context) (hypervisor.Machine, error) {
	spec := s.newMachineSpec()
	if s.claim.Spec.Standby {
		return s.provider.Ensure(ctx, spec)
	}

	return s.provider.Start(ctx, spec, s.renderSeed)
}

// releaseID removes the reserved ID from the claim's status, because another VM has it. The next reconcile
// reserves a new ID. Nothing was created with the old ID.
func (s *scope) releaseID(ctx context.Context, cause error) step.Result {
	_, s.claim.Status.Attempts = s.lastAttempts()
	s.claim.Status.VMRef, s.claim.Status.Backoff = nil, nil
	s.times().Placed, s.times().CloneStarted, s.times().Cloned = nil, nil, nil

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	s.breakers.dropAttempts(client.ObjectKeyFromObject(s.claim))

	return step.Wait(requeueNow, "IDTaken", cause.Error())
}

// renderSeed renders the machine's cloud-init ISO. It issues the only credential that the machine ever
// gets, or offers it if the machine requests its credential itself. The provider calls renderSeed at most
// once for each machine unless an error or a crash interrupts it.
func (s *scope) renderSeed(ctx context.Context) (hypervisor.Seed, error) {
	provider, err := s.Workloads.ProviderFor(ctx, s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return hypervisor.Seed{}, err
	}

	runner, err := s.Workloads.ResolveRunner(s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return hypervisor.Seed{}, err
	}

	if err := vmspec.CheckPlatform(s.template, runner); err != nil {
		return hypervisor.Seed{}, err
	}

	request := vmspec.NewRunnerRequest(s.claim, runner, s.Settings)

	var job *v1alpha1.RunnerJob

	if runner.NeedsJob {
		if job, err = s.ensureBoundJob(ctx); err != nil {
			return hypervisor.Seed{}, err
		}

		if err := s.recordBinding(ctx); err != nil {
			return hypervisor.Seed{}, err
		}

		request.Job = &job.Spec
	}

	info := s.claim.Status.BootstrapInfo
	info.RunnerName, info.ExpiresAt = request.Name, nil
	in := vmspec.Input{
		Claim: s.claim, Template: s.template, Names: s.names, Runner: runner, Request: request, Settings: s.Settings,
	}

	if in.Attestation, err = s.registerIdentity(ctx); err != nil {
		return hypervisor.Seed{}, err
	}

	if in.Credential, err = s.prepareCredential(ctx, provider, request, job); err != nil {
		return hypervisor.Seed{}, err
	}

	seed, err := vmspec.RenderSeed(in)
	if err != nil {
		return hypervisor.Seed{}, err
	}

	return seed, nil
}

// prepareCredential issues the credential of the machine, and returns what the cloud-init ISO holds of it.
// With bootstrap methods callback and external-secrets it returns an empty credential, because the machine
// gets its credential itself.
func (s *scope) prepareCredential(
	ctx context.Context, provider workload.Provider, request workload.RunnerRequest, job *v1alpha1.RunnerJob,
) (workload.Credential, error) {
	switch s.template.Spec.Bootstrap.Method {
	case v1alpha1.BootstrapCallback:
		return workload.Credential{}, s.offerCredential(ctx)
	case v1alpha1.BootstrapExternalSecrets:
		return workload.Credential{}, s.revokeCode(ctx)
	default:
		return s.issueCredential(ctx, provider, request, job)
	}
}

// offerCredential records in the claim's status that the machine may request its credential, and with which
// proof. Without this record the operator accepts no claim code, so a code that is on no cloud-init ISO is
// invalid.
func (s *scope) offerCredential(ctx context.Context) error {
	if !s.setOffer() {
		return nil // it is recorded, and the cloud-init ISO gets the same code again
	}

	if err := step.SaveStatus(ctx); err != nil {
		return fmt.Errorf("record credential offer in claim %s: %w", s.claim.Name, err)
	}

	return nil
}

// setOffer sets the offer in the claim's status, and reports whether that has changed the status.
func (s *scope) setOffer() bool {
	info, proof := s.claim.Status.BootstrapInfo, vmspec.RequiredProof(s.claim)
	if info.Handover != nil && vmspec.OfferedProof(info.Handover) == proof {
		return false
	}

	info.Handover = &v1alpha1.CredentialHandover{Proof: proof, OfferedAt: *s.now()}

	return true
}

// revokeCode removes an earlier offer from the claim's status, so that a claim code on an earlier
// cloud-init ISO becomes invalid.
func (s *scope) revokeCode(ctx context.Context) error {
	info := s.claim.Status.BootstrapInfo
	if info.Handover == nil {
		return nil
	}

	info.Handover = nil

	if err := step.SaveStatus(ctx); err != nil {
		return fmt.Errorf("remove credential offer from claim %s: %w", s.claim.Name, err)
	}

	return nil
}

// issueCredential issues the credential that the cloud-init ISO holds.
func (s *scope) issueCredential(
	ctx context.Context, provider workload.Provider, request workload.RunnerRequest, job *v1alpha1.RunnerJob,
) (workload.Credential, error) {
	if err := s.revokeCode(ctx); err != nil {
		return workload.Credential{}, err
	}

	info := s.claim.Status.BootstrapInfo
	start := s.Clock.Now()

	credential, err := provider.IssueCredential(ctx, request)
	if job != nil && workload.Is(err, workload.NotFound) {
		return workload.Credential{}, s.handleJobGone(ctx, provider, job, err)
	}

	if err != nil {
		return workload.Credential{}, fmt.Errorf("issue credential of runner %s: %w", request.Name, err)
	}

	duration := s.Clock.Since(start)
	step.OnNextSave(ctx, func() { s.Metrics.ObserveCredential(s.claim, duration) })

	for _, name := range s.breakers.closeBreaker(s.platformCause()) {
		s.Trigger.Enqueue(name)
	}

	info.RunnerID = credential.RunnerID

	if job != nil {
		s.issued.add(s.claim)
	}

	if !credential.ExpiresAt.IsZero() {
		info.ExpiresAt = &metav1.Time{Time: credential.ExpiresAt}
	}

	return credential, nil
}
