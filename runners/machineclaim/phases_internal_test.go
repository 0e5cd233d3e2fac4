// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"net"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// Each part of the life of a machine has its phase in the status that the API server has, also if the validation of its
// network has failed. The status also names the machine.
func TestPhasesOfClaims(t *testing.T) {
	t.Parallel()

	h := newStandbyFixture(t, nil)
	h.scope.Clusters = &connect.Clusters{}

	if ref := h.scope.claim.Status.VMRef; ref.HypervisorCluster != "lab" || ref.VMID == "" || ref.Node == "" {
		t.Errorf("the machine is %+v", ref)
	}

	mac, config := h.scope.claim.Status.NetworkInfo.MACAddress, h.pve.Snapshot().CreatedVMs()[0].Config["net0"]
	if _, err := net.ParseMAC(mac); err != nil || !strings.Contains(strings.ToLower(config), strings.ToLower(mac)) {
		t.Errorf("the MAC address %q is not that of %q: %v", mac, config, err)
	}

	meta.SetStatusCondition(&h.scope.claim.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionNetworkValidated, Status: metav1.ConditionFalse, Reason: "PingFailed",
	})

	drain := func(ctx context.Context, s *scope) step.Result {
		s.claim.Spec.Standby = false
		s.deregistered.add(s.claim)

		return deregister(ctx, s)
	}

	for _, row := range []struct {
		want v1alpha1.MachineClaimPhase
		run  func(context.Context, *scope) step.Result
	}{
		{v1alpha1.MachineClaimProvisioning, func(context.Context, *scope) step.Result { return step.Done() }},
		{v1alpha1.MachineClaimBootstrapping, func(ctx context.Context, s *scope) step.Result {
			s.completeProvision(ctx)

			return step.Done()
		}},
		{v1alpha1.MachineClaimReady, func(ctx context.Context, s *scope) step.Result {
			s.claim.Status.BootstrapInfo.GuestPhase, s.claim.Status.BootstrapInfo.Job = string(guest.PhaseRunning), "build"

			return bootstrap(ctx, s)
		}},
		{v1alpha1.MachineClaimReady, follow}, // the failed validation of the network does not end the machine
		{v1alpha1.MachineClaimDraining, drain},
		{v1alpha1.MachineClaimTerminating, destroy},
		{v1alpha1.MachineClaimDraining, drain},
		{v1alpha1.MachineClaimTerminating, func(ctx context.Context, s *scope) step.Result {
			s.recordStopped(ctx, guest.ReasonJobDone)

			return step.Done()
		}},
		{v1alpha1.MachineClaimPending, func(ctx context.Context, s *scope) step.Result {
			s.claim.Status.Phase = "" // as that of a new claim

			return resolve(ctx, s)
		}},
		{v1alpha1.MachineClaimDraining, func(ctx context.Context, s *scope) step.Result {
			return s.endMachine(ctx, "MaxLifetime", "the machine is too old")
		}},
	} {
		list := []step.Step[*scope]{{Condition: v1alpha1.ConditionProvisioned, Run: row.run}}
		if _, err := step.ReconcileSteps(t.Context(), h.scope.StepReconciler, h.scope.claim, list, h.scope); err != nil {
			t.Fatal(err)
		}

		var claim v1alpha1.MachineClaim
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(h.scope.claim), &claim); err != nil {
			t.Fatal(err)
		}

		if claim.Status.Phase != row.want {
			t.Errorf("phase %s, want %s", claim.Status.Phase, row.want)
		}
	}
}
