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
	// reasonKept is that of a claim whose machine failed and is there to be looked at.
	reasonKept = "Kept"
	// defaultKeep holds where a pool names no time.
	defaultKeep = time.Hour
)

// keep leaves a machine that failed as it is, where its pool asks for that and has not kept as
// many already. Its runner is removed first: it must not take a job any more. The claim keeps
// its finalizer, so that whoever deletes it, and when, has the machine removed as ever.
func (s *scope) keep(ctx context.Context) (step.Result, bool) {
	status := &s.claim.Status

	if until := status.KeptUntil; until != nil {
		left := until.Sub(s.Clock.Now())
		status.Phase = v1alpha1.MachineClaimFailed

		return step.Wait(left, reasonKept, s.console()), left > 0
	}

	if !keepable(s.claim) {
		return step.Result{}, false
	}

	if full, err := s.keptEnough(ctx); err != nil || full {
		return step.Fail(err), err != nil
	}

	_, err := s.provider.Get(ctx, s.ref())
	if hypervisor.Is(err, hypervisor.NotFound) {
		return step.Result{}, false
	}

	if result := deregister(ctx, s); !result.IsDone() {
		return result, true
	}

	pause := of(s.claim.Spec.Lifecycle.KeepFailed.Time)
	if pause <= 0 {
		pause = defaultKeep
	}

	status.KeptUntil = &metav1.Time{Time: s.Clock.Now().Add(pause)}
	status.Phase = v1alpha1.MachineClaimFailed
	s.eventf(ctx, corev1.EventTypeWarning, reasonKept, "Keep", "%s", s.console())

	return step.Wait(pause, reasonKept, s.console()), true
}

// keepable says whether a machine failed in a way that its pool wants to have kept: it was
// started, and was of no use. It is pure.
func keepable(claim *v1alpha1.MachineClaim) bool {
	lifecycle, times, info := claim.Spec.Lifecycle, claim.Status.Times, claim.Status.BootstrapInfo
	if lifecycle == nil || lifecycle.KeepFailed == nil || claim.Spec.RunnerPoolRef == nil || claim.Status.VMRef == nil {
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

// keptEnough says whether the pool has kept as many machines as it wants.
func (s *scope) keptEnough(ctx context.Context) (bool, error) {
	var claims v1alpha1.MachineClaimList

	pool := client.MatchingLabels{v1alpha1.LabelRunnerPool: s.claim.Spec.RunnerPoolRef.Name}

	err := s.Client.List(ctx, &claims, client.InNamespace(s.claim.Namespace), pool, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("list claims of pool %s: %w", s.claim.Spec.RunnerPoolRef.Name, err)
	}

	kept := int32(0)

	for i := range claims.Items {
		if other := &claims.Items[i]; other.UID != s.claim.UID && other.Status.KeptUntil != nil && other.DeletionTimestamp.IsZero() {
			kept++
		}
	}

	return kept >= max(s.claim.Spec.Lifecycle.KeepFailed.Machines, 1), nil
}

// console says how to look at the machine.
func (s *scope) console() string {
	vm := s.claim.Status.VMRef
	look := fmt.Sprintf("open the console of VM %s in the hypervisor's own interface", vm.VMID)

	if s.cluster != nil && s.cluster.Spec.Provider == providerProxmox {
		look = fmt.Sprintf("log in to node %s and run: qm terminal %s (if it is off: qm start %s first), or open the console of "+
			"VM %s in the web interface", vm.Node, vm.VMID, vm.VMID, vm.VMID)
	}

	return fmt.Sprintf("it failed (%s) and is kept until %s: %s. Remove it sooner by: kubectl delete machineclaim -n %s %s",
		s.claim.Status.EndReason, s.claim.Status.KeptUntil.UTC().Format(time.RFC3339), look, s.claim.Namespace, s.claim.Name)
}

// providerProxmox is spec.provider of clusters of Proxmox VE.
const providerProxmox = "proxmox"
