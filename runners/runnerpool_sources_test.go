// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

func TestMachinesAreSpreadOverTemplates(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Placement = &v1alpha1.Placement{TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}, {Name: "three"}}}
	})
	w.createTemplate("two")
	w.queueJobs(4)
	w.reconcileAfter(0)
	w.requireTemplateCounts(map[string]int{"one": 2, "two": 2})
	w.requireCondition("TemplateReady", metav1.ConditionTrue, "SomeTemplatesNotReady", `there is no HypervisorMachineTemplate "three"`)

	// The cluster of the first template fails: the pool uses the other template.
	w.setReady(getObject(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{}), metav1.ConditionFalse)
	w.queueJobs(2)
	w.reconcileAfter(time.Second)
	w.requireTemplateCounts(map[string]int{"one": 2, "two": 4})
	w.reconcileAfter(10 * time.Second) // an update with the same reason is not written at once
	w.requireCondition("TemplateReady", metav1.ConditionTrue, "SomeTemplatesNotReady", "is not ready: as the test says")
}

// requireTemplateCounts checks how many claims use each template.
func (w *poolFixture) requireTemplateCounts(want map[string]int) {
	w.Helper()

	got := map[string]int{}
	for _, claim := range w.listClaims() {
		got[claim.Spec.TemplateRef.Name]++
	}

	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("machines by template: %v, want %v", got, want)
	}
}

func TestPackedMachinesUseNextCluster(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Placement = &v1alpha1.Placement{
			Strategy: v1alpha1.PlacementPack, TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}},
		}
	})
	w.createTemplate("two")
	w.queueJobs(3)
	w.reconcileAfter(0)
	w.requireTemplateCounts(map[string]int{"one": 3})

	full := func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: "NoCapacity", Message: "no node has room",
			LastTransitionTime: metav1.NewTime(now.Time),
		}}
	}
	claims := w.listClaims()
	w.setClaimStatus(&claims[0], full)
	w.setClaimStatus(&claims[1], setPrepared)
	w.setClaimStatus(&claims[2], setPrepared)

	// The waiting machine is created on another cluster, and so are further machines for some time.
	w.reconcileAfter(time.Second)
	w.finishDeletions()
	w.requireTemplateCounts(map[string]int{"one": 2, "two": 1})
	w.queueJobs(1)
	w.reconcileAfter(time.Second)
	w.requireTemplateCounts(map[string]int{"one": 2, "two": 2})

	// If no other cluster has capacity, the claim stays.
	for _, claim := range w.listClaims() {
		if claim.Spec.TemplateRef.Name == "two" {
			w.setClaimStatus(&claim, full)
		}
	}

	w.reconcileAfter(time.Second)
	w.requireTemplateCounts(map[string]int{"one": 2, "two": 2})

	// Later the pool uses the first template again: one claim tries it, and the other one follows.
	w.reconcileAfter(2 * time.Minute)
	w.finishDeletions()
	w.requireTemplateCounts(map[string]int{"one": 3, "two": 1})

	for _, claim := range w.listClaims() {
		if claim.Status.VMRef == nil && claim.Spec.TemplateRef.Name == "one" {
			w.setClaimStatus(&claim, setPrepared)
		}
	}

	w.reconcileAfter(time.Second)
	w.finishDeletions()
	w.requireTemplateCounts(map[string]int{"one": 4})

	for _, claim := range w.listClaims() {
		if claim.Spec.Placement != v1alpha1.PlacementPack {
			t.Errorf("claim %s is placed by %q", claim.Name, claim.Spec.Placement)
		}
	}
}

// TestMachineWaitsOnlyIfNoOtherTemplateIsUsable checks that a machine which waits for its template is created from
// another one: while the address pool of its template is exhausted, and while its cluster is not ready for a minute.
func TestMachineWaitsOnlyIfNoOtherTemplateIsUsable(t *testing.T) {
	t.Parallel()

	setNoAddress := func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionAddressAllocated, Status: metav1.ConditionFalse, Reason: "PoolExhausted", Message: "no address is free",
			LastTransitionTime: metav1.NewTime(now.Time),
		}}
	}

	start := func(t *testing.T) *poolFixture {
		t.Helper()

		w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
			p.Spec.Placement = &v1alpha1.Placement{
				Strategy: v1alpha1.PlacementPack, TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}},
			}
		})
		w.queueJobs(3)
		w.reconcileAfter(0)
		w.requireTemplateCounts(map[string]int{"one": 3})

		return w
	}

	t.Run("no free address", func(t *testing.T) {
		t.Parallel()

		w := start(t)
		w.setClaimStatus(&w.listClaims()[0], setNoAddress)
		w.reconcileAfter(time.Second)
		w.requireTemplateCounts(map[string]int{"one": 3}) // no other template is usable

		w.createTemplate("two")
		w.reconcileAfter(time.Second)
		w.finishDeletions()
		w.requireTemplateCounts(map[string]int{"one": 2, "two": 1})
		w.queueJobs(1)
		w.reconcileAfter(time.Second)
		w.requireTemplateCounts(map[string]int{"one": 2, "two": 2})
	})

	t.Run("cluster not ready", func(t *testing.T) {
		t.Parallel()

		w := start(t)
		w.createTemplate("two")

		claims := w.listClaims()
		w.setClaimStatus(&claims[0], func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
			setPrepared(status, now)
			status.Times.Started = now
		})
		w.setClaimStatus(&claims[1], setPrepared)
		w.setReady(getObject(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{}), metav1.ConditionFalse)
		w.reconcileAfter(time.Second)
		w.requireTemplateCounts(map[string]int{"one": 3})

		result := w.reconcileAfter(time.Second)
		if result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
			t.Errorf("the next reconcile is after %s, want within a minute", result.RequeueAfter)
		}

		w.reconcileAfter(time.Minute)
		w.finishDeletions()
		w.reconcileAfter(time.Second)

		if got := w.listClaims(); !slices.ContainsFunc(got, func(c v1alpha1.MachineClaim) bool { return c.Name == claims[0].Name }) {
			t.Error("the machine that was started was deleted")
		}

		w.requireTemplateCounts(map[string]int{"one": 1, "two": 2})
	})
}
