// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/machine"
	"github.com/hyperfleet/hyperfleet/workload"
)

// provision has the machine made and, unless it is on standby, powered on.
func provision(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if s.times().Started != nil {
		return step.Done()
	}

	if s.times().CloneStarted == nil {
		s.times().CloneStarted = s.micro()
	}

	s.activated()

	made, err := s.provider.Create(ctx, machine.Spec(s.claim, s.template, s.names), s.media)
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
		return s.provisioning(err, "ProvisioningFailed")
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

		return s.standBy(ctx)
	case hypervisor.StateRunning, hypervisor.StateStopped:
		status.Phase, status.Attempts = v1alpha1.MachineClaimBootstrapping, 0
		s.times().Started = s.micro()
		s.Metrics.phase("provisioned", s.since(s.asked()))
		s.eventf(corev1.EventTypeNormal, "Started", "Provision", "VM %s is running on node %s", status.VMRef.VMID, made.Node)

		return step.Done()
	default:
		status.Phase = v1alpha1.MachineClaimProvisioning

		return step.Wait(lookAgain, string(made.State), made.Message)
	}
}

// replace gives up an id that turned out to be another's, and has a new one reserved.
// Nothing was made under the old one.
func (s *scope) replace(ctx context.Context, cause error) step.Result {
	s.claim.Status.VMRef = nil
	s.times().Placed, s.times().CloneStarted, s.times().Cloned = nil, nil, nil

	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	return step.Wait(time.Millisecond, "IDTaken", cause.Error())
}

// media makes the machine's boot medium, and with it the one credential it will ever
// have. The provider asks for it at most once in an undisturbed life.
func (s *scope) media(ctx context.Context) (hypervisor.Media, error) {
	provider, err := s.Workloads.For(ctx, s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return hypervisor.Media{}, err //nolint:wrapcheck // it names the template and the mend
	}

	runner, err := s.Workloads.Runner(s.template, s.claim.Spec.WorkloadConfig)
	if err != nil {
		return hypervisor.Media{}, err //nolint:wrapcheck // it names the template and the mend
	}

	request := machine.RunnerRequest(s.claim, runner, s.Settings)

	var job *v1alpha1.RunnerJob

	if runner.Binds {
		if job, err = s.bind(ctx); err != nil {
			return hypervisor.Media{}, err
		}

		request.Job = &job.Spec
	}

	start := s.Clock.Now()

	credential, err := provider.Issue(ctx, request)
	if job != nil && workload.Is(err, workload.NotFound) {
		return hypervisor.Media{}, s.jobGone(ctx, provider, job, err)
	}

	if err != nil {
		return hypervisor.Media{}, fmt.Errorf("issue credential of runner %s: %w", request.Name, err)
	}

	s.Metrics.phase("credential", s.Clock.Since(start))

	info := s.claim.Status.BootstrapInfo
	info.RunnerName, info.RunnerID = request.Name, credential.RunnerID
	info.ExpiresAt = nil

	if !credential.ExpiresAt.IsZero() {
		info.ExpiresAt = &metav1.Time{Time: credential.ExpiresAt}
	}

	media, err := machine.Media(machine.Input{
		Claim: s.claim, Template: s.template, Names: s.names, Runner: runner, Request: request,
		Credential: credential, Settings: s.Settings,
	})
	if err != nil {
		return hypervisor.Media{}, err //nolint:wrapcheck // it names the template and the mend
	}

	return media, nil
}
