// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// reconcileDeletion reconciles the deletion of the VM until its condition is as wanted.
func (h *standbyFixture) reconcileDeletion(what string, isWanted func(*metav1.Condition) bool) ctrl.Result {
	h.Helper()

	const patience = time.Minute

	steps := slices.DeleteFunc(newPlan().DeletionSteps, func(s step.Step[*scope]) bool { return s.Condition != v1alpha1.ConditionVMCleanedUp })

	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		result, err := step.ReconcileSteps(h.Context(), h.scope.StepReconciler, h.scope.claim, steps, h.scope)
		if err != nil {
			h.Fatal(err)
		}

		condition := meta.FindStatusCondition(h.scope.claim.Status.Conditions, v1alpha1.ConditionVMCleanedUp)
		if condition != nil && isWanted(condition) {
			return result
		}

		if time.Now().After(deadline) {
			h.Fatalf("condition = %+v, want %s", condition, what)
		}
	}
}

// If the VM cannot be deleted, the condition of the claim says why, and the deletion is tried again after a back-off.
// When the VM is deleted, the condition is True.
func TestDeletionIsReportedAndRetried(t *testing.T) {
	t.Parallel()

	h := newStandbyFixture(t, nil)
	connection := connectProvider(t, h.pve)
	h.scope.cluster.Spec.Provider = v1alpha1.ProviderProxmox
	h.scope.Clusters = &connect.Clusters{
		Secrets: &connect.Secrets{},
		Factories: map[string]hypervisor.Factory{
			v1alpha1.ProviderProxmox: func(hypervisor.Config, hypervisor.Options) (hypervisor.Connection, error) { return connection, nil },
		},
	}

	if _, err := h.scope.Clusters.Ensure(t.Context(), h.scope.cluster); err != nil {
		t.Fatal(err)
	}

	repair := h.pve.AddFault(pve.Fault{
		Kind: pve.FaultError, Method: http.MethodDelete, Path: "/nodes/*/qemu/*", Status: http.StatusInternalServerError, Reason: "the disk is in flames",
	})

	result := h.reconcileDeletion("the failure", func(c *metav1.Condition) bool {
		return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "the disk is in flames")
	})
	if result.RequeueAfter <= 0 || len(h.pve.Snapshot().CreatedVMs()) != 1 {
		t.Errorf("the next attempt is after %s, and there are the VMs %+v", result.RequeueAfter, h.pve.Snapshot().CreatedVMs())
	}

	repair()
	h.clock.SetTime(h.clock.Now().Add(2 * time.Minute))
	h.reconcileDeletion("True", func(c *metav1.Condition) bool { return c.Status == metav1.ConditionTrue })

	if left := h.pve.Snapshot().CreatedVMs(); len(left) > 0 {
		t.Errorf("the condition is True, but there is %+v", left)
	}
}
