// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// provision has the machine made and, unless it is on standby, powered on.
func provision(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if s.times().Started != nil {
		return step.Done()
	}

	if over, err := s.over(ctx); err != nil {
		return step.Fail(err)
	} else if over {
		s.started(ctx, "VM %s was started on node %s, and is gone")

		return step.Done()
	}

	if result, waits := s.notYet(); waits {
		return result
	}

	if result, ok := s.stillAllowed(ctx); !ok {
		return result
	}

	if err := s.asking(ctx); err != nil {
		return step.Fail(err)
	}

	made, err := s.make(ctx)
	if hypervisor.Is(err, hypervisor.IDTaken) {
		return s.replace(ctx, err)
	}

	if errors.Is(err, errNoJob) {
		return s.end(ctx, v1alpha1.EndReasonNoJob, errNoJob.Error())
	}

	if errors.Is(err, errJobGone) {
		return s.end(ctx, guest.ReasonJobGone, err.Error())
	}

	if err != nil {
		return s.makingFailed(v1alpha1.ConditionProvisioned, err, "ProvisioningFailed")
	}

	status.VMRef.Node = made.Node

	if made.MAC != "" {
		status.NetworkInfo.MACAddress = made.MAC
	}

	if made.Cloned && s.times().Cloned == nil {
		s.times().Cloned = s.micro()
	}

	switch made.State {
	case hypervisor.StatePrepared:
		status.Phase, status.Attempts = v1alpha1.MachineClaimProvisioning, 0
		s.worked(s.hypervisorCause())

		return s.standBy(ctx)
	case hypervisor.StateRunning, hypervisor.StateStopped:
		s.started(ctx, "VM %s is running on node %s")

		return step.Done()
	default:
		status.Phase = v1alpha1.MachineClaimProvisioning

		return step.Wait(lookAgain, string(made.State), made.Message).Unhurried()
	}
}

// over says that the machine was started, though the answer that told so was lost, and is gone by
// now: it has spoken, or its runner had a job. Such a machine is not made again.
func (s *scope) over(ctx context.Context) (bool, error) {
	info := s.claim.Status.BootstrapInfo
	if s.claim.Spec.Standby || s.times().CloneStarted == nil || info.RunnerName == "" {
		return false, nil
	}

	if info.ReportedAt == nil {
		if err := s.findJob(ctx); err != nil {
			return false, err
		}
	}

	if info.ReportedAt == nil && info.Job == "" {
		return false, nil
	}

	_, err := s.provider.Get(ctx, s.ref())

	return hypervisor.Is(err, hypervisor.NotFound), nil
}

// started puts on record that the machine was started; format says so, of its id and node.
func (s *scope) started(ctx context.Context, format string) {
	status := &s.claim.Status
	status.Phase, status.Attempts = v1alpha1.MachineClaimBootstrapping, 0
	s.worked(s.hypervisorCause())
	s.markStarted()
	s.phaseTook(ctx, "provisioned", s.asked())
	s.eventf(ctx, corev1.EventTypeNormal, "Started", "Provision", format, status.VMRef.VMID, status.VMRef.Node)
}

// asking puts on record that the hypervisor is asked for the machine, or for its start, and by
// which id and on which node.
func (s *scope) asking(ctx context.Context) error {
	news := s.activated()

	if s.times().CloneStarted == nil {
		s.times().CloneStarted = s.micro()
		news = true
	}

	if !news {
		return nil
	}

	return step.SaveAs(ctx, step.Wait(lookAgain, string(hypervisor.StateCreating), "the hypervisor is asked for the machine"))
}

// notYet says that nothing is to be asked of the hypervisor yet: the last try has failed, or
// that of other machines by the same cause. What is under way goes on.
func (s *scope) notYet() (step.Result, bool) {
	status := &s.claim.Status

	if result, failed := s.gaveUp(); failed {
		return result, true
	}

	if status.Phase == v1alpha1.MachineClaimFailed && s.claim.Spec.RunnerPoolRef != nil {
		last := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProvisioned)
		if last != nil && last.Status == metav1.ConditionFalse {
			return step.Stall(last.Reason, last.Message), true // its pool makes another
		}
	}

	if result, waits := s.backingOff(v1alpha1.ConditionProvisioned); waits {
		return result, true
	}

	if status.Backoff == nil && s.times().CloneStarted != nil {
		return step.Result{}, false
	}

	causes := []string{s.hypervisorCause()}
	if !s.claim.Spec.Standby && status.BootstrapInfo.RunnerID == "" {
		causes = append(causes, s.platformCause())
	}

	result, ok := s.admitted(v1alpha1.ConditionProvisioned, causes...)

	return result, !ok
}

// make has the machine made and, unless it is on standby, started.
func (s *scope) make(ctx context.Context) (hypervisor.Machine, error) {
	spec := vmspec.Spec(s.claim, s.template, s.names)
	if s.claim.Spec.Standby {
		return s.provider.Ensure(ctx, spec)
	}

	return s.provider.Start(ctx, spec, s.seed)
}

// replace gives up an id that turned out to be another's, and has a new one reserved.
// Nothing was made under the old one.
func (s *scope) replace(ctx context.Context, cause error) step.Result {
	_, s.claim.Status.Attempts = s.lastTries()
	s.claim.Status.VMRef, s.claim.Status.Backoff = nil, nil
	s.times().Placed, s.times().CloneStarted, s.times().Cloned = nil, nil, nil

	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	s.causes.drop(client.ObjectKeyFromObject(s.claim))

	return step.Wait(time.Millisecond, "IDTaken", cause.Error())
}

// seed makes the machine's cloud-init ISO, and with it the one credential it will ever
// have, or the code that it gets that for. The provider asks for it at most once in an
// undisturbed life.
func (s *scope) seed(ctx context.Context) (hypervisor.Seed, error) {
	provider, err := s.Workloads.For(ctx, s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return hypervisor.Seed{}, err
	}

	runner, err := s.Workloads.Runner(s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return hypervisor.Seed{}, err
	}

	if err := vmspec.CheckPlatform(s.template, runner); err != nil {
		return hypervisor.Seed{}, err
	}

	request := vmspec.RunnerRequest(s.claim, runner, s.Settings)

	var job *v1alpha1.RunnerJob

	if runner.Binds {
		if job, err = s.bind(ctx); err != nil {
			return hypervisor.Seed{}, err
		}

		request.Job = &job.Spec
	}

	info := s.claim.Status.BootstrapInfo
	info.RunnerName, info.ExpiresAt = request.Name, nil
	in := vmspec.Input{
		Claim: s.claim, Template: s.template, Names: s.names, Runner: runner, Request: request, Settings: s.Settings,
	}

	if in.Attestation, err = s.register(ctx); err != nil {
		return hypervisor.Seed{}, err
	}

	if in.Credential, err = s.credential(ctx, provider, request, job); err != nil {
		return hypervisor.Seed{}, err
	}

	seed, err := vmspec.Seed(in)
	if err != nil {
		return hypervisor.Seed{}, err
	}

	return seed, nil
}

// credential sees to it that the machine comes to its credential, and gives what of it goes
// onto the cloud-init ISO: nothing where the machine gets it itself.
func (s *scope) credential(
	ctx context.Context, provider workload.Provider, request workload.RunnerRequest, job *v1alpha1.RunnerJob,
) (workload.Credential, error) {
	switch s.template.Spec.Bootstrap.Method {
	case v1alpha1.BootstrapCallback:
		return workload.Credential{}, s.offer(ctx)
	case v1alpha1.BootstrapExternalSecrets:
		return workload.Credential{}, s.revokeCode(ctx)
	default:
		return s.issue(ctx, provider, request, job)
	}
}

// offer puts on record that the machine calls for its credential, and by what proof, so that
// no code counts that is on no cloud-init ISO.
func (s *scope) offer(ctx context.Context) error {
	info := s.claim.Status.BootstrapInfo
	proof := vmspec.Proof(s.claim)

	if info.Handover != nil && vmspec.ProofOf(info.Handover) == proof {
		return nil // the same code goes onto the cloud-init ISO again
	}

	info.Handover = &v1alpha1.CredentialHandover{Proof: proof, OfferedAt: *s.micro()}

	if err := step.Save(ctx); err != nil {
		return fmt.Errorf("keep the offer of a credential to claim %s: %w", s.claim.Name, err)
	}

	return nil
}

// revokeCode makes a claim code that an earlier cloud-init ISO may have had worthless.
func (s *scope) revokeCode(ctx context.Context) error {
	info := s.claim.Status.BootstrapInfo
	if info.Handover == nil {
		return nil
	}

	info.Handover = nil

	if err := step.Save(ctx); err != nil {
		return fmt.Errorf("take back the offer of a credential to claim %s: %w", s.claim.Name, err)
	}

	return nil
}

// issue has the credential made that goes onto the cloud-init ISO.
func (s *scope) issue(
	ctx context.Context, provider workload.Provider, request workload.RunnerRequest, job *v1alpha1.RunnerJob,
) (workload.Credential, error) {
	if err := s.revokeCode(ctx); err != nil {
		return workload.Credential{}, err
	}

	info := s.claim.Status.BootstrapInfo
	start := s.Clock.Now()

	credential, err := provider.Issue(ctx, request)
	if job != nil && workload.Is(err, workload.NotFound) {
		return workload.Credential{}, s.jobGone(ctx, provider, job, err)
	}

	if err != nil {
		return workload.Credential{}, fmt.Errorf("issue credential of runner %s: %w", request.Name, err)
	}

	onRecord := step.Afterwards
	if job != nil {
		onRecord = step.OnSaved // the platform lists no such runners by name: the id is not to be lost
	}

	took := s.Clock.Since(start)
	onRecord(ctx, func() { s.Metrics.Issued(s.claim, took) })

	for _, name := range s.causes.worked(s.platformCause()) {
		s.Trigger.Enqueue(name)
	}

	info.RunnerID = credential.RunnerID

	if !credential.ExpiresAt.IsZero() {
		info.ExpiresAt = &metav1.Time{Time: credential.ExpiresAt}
	}

	return credential, nil
}
