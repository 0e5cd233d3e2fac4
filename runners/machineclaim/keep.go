// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// reasonKept is the reason of a claim whose machine failed and is kept for debugging.
	reasonKept = "Kept"
	// defaultKeep is how long such a machine is kept if the pool sets no time.
	defaultKeep = time.Hour
)

// keepFailed keeps the VM of a failed machine for debugging if its pool has spec.lifecycle.keepFailed and
// has not yet kept the configured number of machines. It first deregisters the runner, so that the runner
// takes no job. It returns Done if the VM is not kept, or no longer. The claim keeps its finalizer, so anyone
// can delete the claim at any time and the VM is deleted.
func (s *scope) keepFailed(ctx context.Context) step.Result {
	status := &s.claim.Status

	if until := status.KeptUntil; until != nil {
		status.Phase = v1alpha1.MachineClaimFailed

		remaining := until.Sub(s.Clock.Now())
		if remaining <= 0 {
			return step.Done()
		}

		return step.Wait(remaining, reasonKept, s.consoleMessage())
	}

	if !shouldKeep(s.claim) {
		return step.Done()
	}

	hasKeptEnough, err := s.hasKeptEnough(ctx)
	if err != nil {
		return step.Fail(err)
	}

	if hasKeptEnough {
		return step.Done()
	}

	_, err = s.provider.Get(ctx, s.machineRef())
	if hypervisor.Is(err, hypervisor.NotFound) {
		return step.Done()
	}

	if result := deregister(ctx, s); !result.IsDone() {
		return result
	}

	keepTime := toDuration(s.claim.Spec.Lifecycle.KeepFailed.Time)
	if keepTime <= 0 {
		keepTime = defaultKeep
	}

	status.KeptUntil = &metav1.Time{Time: s.Clock.Now().Add(keepTime)}
	status.Phase = v1alpha1.MachineClaimFailed
	s.eventf(ctx, corev1.EventTypeWarning, reasonKept, "Keep", "%s", s.consoleMessage())

	return step.Wait(keepTime, reasonKept, s.consoleMessage())
}

// shouldKeep reports whether the pool keeps failed machines and this machine has failed: it was started and
// has ended, and its runner never was online or the bootstrap service reported a failure. shouldKeep is
// pure.
func shouldKeep(claim *v1alpha1.MachineClaim) bool {
	lifecycle, times, info := claim.Spec.Lifecycle, claim.Status.Times, claim.Status.BootstrapInfo
	if lifecycle == nil || lifecycle.KeepFailed == nil || claim.PoolName() == "" || claim.Status.VMRef == nil {
		return false
	}

	if times == nil || times.Started == nil || times.Ended == nil {
		return false
	}

	switch claim.Status.EndReason {
	case v1alpha1.EndReasonNoJob, guest.ReasonJobGone, guest.ReasonJobDone:
		return false
	}

	return times.Ready == nil || info != nil && guest.Phase(info.GuestPhase) == guest.PhaseFailed
}

// hasKeptEnough reports whether the pool already keeps its configured number of failed machines.
func (s *scope) hasKeptEnough(ctx context.Context) (bool, error) {
	var claims v1alpha1.MachineClaimList

	pool := client.MatchingLabels{v1alpha1.LabelRunnerPool: s.claim.PoolName()}

	err := s.Client.List(ctx, &claims, client.InNamespace(s.claim.Namespace), pool, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("list claims of pool %s: %w", s.claim.PoolName(), err)
	}

	kept := int32(0)

	for i := range claims.Items {
		if other := &claims.Items[i]; other.UID != s.claim.UID && other.Status.KeptUntil != nil && other.DeletionTimestamp.IsZero() {
			kept++
		}
	}

	return kept >= max(s.claim.Spec.Lifecycle.KeepFailed.Machines, 1), nil
}

// consoleMessage returns the message of a kept machine: how to open its console, and how to delete it.
func (s *scope) consoleMessage() string {
	return fmt.Sprintf("the machine failed (%s) and is kept until %s: %s. "+
		"To delete it sooner, run: kubectl delete machineclaim -n %s %s",
		s.claim.Status.EndReason, s.claim.Status.KeptUntil.UTC().Format(time.RFC3339), s.describeConsole(),
		s.claim.Namespace, s.claim.Name)
}

// describeConsole returns how a person opens the console of the machine: with the tools of its hypervisor, or through the
// operator while the machine runs. KubeVirt's own client has the same purpose.
func (s *scope) describeConsole() string {
	vm := s.claim.Status.VMRef
	instruction := fmt.Sprintf("open the console of VM %s with the tools of the hypervisor", vm.VMID)
	isKubeVirt := s.cluster != nil && s.cluster.Spec.Provider == v1alpha1.ProviderKubeVirt

	if s.cluster != nil && s.cluster.Spec.Provider == v1alpha1.ProviderExternal {
		instruction = fmt.Sprintf("open the console of VM %s with the tools of the provider of HypervisorCluster %s",
			vm.VMID, s.cluster.Name)
	}

	if guide, ok := hypervisor.Find[hypervisor.ConsoleGuide](s.provider); ok {
		instruction = guide.DescribeConsole(s.machineRef(), vm.Node)
	}

	if _, ok := hypervisor.Find[hypervisor.Terminal](s.provider); ok && !isKubeVirt {
		instruction += fmt.Sprintf(", or, while it runs: hyperfleet console -n %s %s", s.claim.Namespace, s.claim.Name)
	}

	return instruction
}
