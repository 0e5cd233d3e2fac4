// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// A reason for which jobs wait is written at once, and so is its end. As long as a pool has more jobs than it may have machines,
// its jobs wait for the same cause, whatever the pool does.
func TestReasonsOfWaitsAreWrittenAtOnce(t *testing.T) {
	t.Parallel()

	const fits, tooMany = 1, 9

	newPool := func(status metav1.ConditionStatus, reason string, queued int32) *v1alpha1.RunnerPool {
		out := &v1alpha1.RunnerPool{}
		out.Spec.Scaling.MaxReplicas = 4
		out.Status.QueuedJobs = queued
		out.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: status, Reason: reason}, {Type: conditionScaling, Status: status, Reason: reason},
		}

		return out
	}

	for _, tc := range []struct {
		before       string
		status       metav1.ConditionStatus
		queuedBefore int32
		after        string
		queuedAfter  int32
		want         bool
	}{
		{demand.ReasonSteady, metav1.ConditionTrue, fits, demand.ReasonScalingUp, fits, true},
		{demand.ReasonScalingUp, metav1.ConditionTrue, fits, demand.ReasonSteady, fits, true},
		{demand.ReasonIdleSurplus, metav1.ConditionTrue, fits, demand.ReasonScalingDown, fits, true},
		{demand.ReasonAtMaximum, metav1.ConditionTrue, fits, demand.ReasonAtMaximum, fits, true},
		{demand.ReasonScalingUp, metav1.ConditionTrue, fits, demand.ReasonAtMaximum, fits, false},
		{demand.ReasonAtMaximum, metav1.ConditionTrue, fits, demand.ReasonSteady, fits, false},
		{demand.ReasonScalingUp, metav1.ConditionTrue, fits, demand.ReasonBackingOff, fits, false},
		{demand.ReasonBackingOff, metav1.ConditionTrue, fits, demand.ReasonScalingUp, fits, false},
		{demand.ReasonSteady, metav1.ConditionTrue, fits, demand.ReasonWaitingForDeletion, fits, false},
		{demand.ReasonPaused, metav1.ConditionFalse, fits, demand.ReasonSteady, fits, false},
		{"QuotaExceeded", metav1.ConditionFalse, fits, demand.ReasonScalingUp, fits, false},
		{demand.ReasonScalingUp, metav1.ConditionTrue, fits, demand.ReasonReplacing, tooMany, false},
		{demand.ReasonScalingUp, metav1.ConditionTrue, tooMany, demand.ReasonAtMaximum, tooMany, true},
		{demand.ReasonAtMaximum, metav1.ConditionTrue, tooMany, demand.ReasonReplacing, tooMany, true},
		{demand.ReasonWaitingForDeletion, metav1.ConditionTrue, tooMany, demand.ReasonScalingUp, tooMany, true},
		{demand.ReasonAtMaximum, metav1.ConditionTrue, tooMany, demand.ReasonScalingUp, fits, false},
	} {
		saved, current := newPool(tc.status, tc.before, tc.queuedBefore), newPool(tc.status, tc.before, tc.queuedAfter)
		if got := canWriteLater(saved, current, tc.after); got != tc.want {
			t.Errorf("%s with %d jobs after %s with %d may be written later: %t, want %t",
				tc.after, tc.queuedAfter, tc.before, tc.queuedBefore, got, tc.want)
		}
	}
}

// The decision has the limits of the pool, and the number of its queued jobs.
func TestInputHasTheLimitsOfThePool(t *testing.T) {
	t.Parallel()

	limit := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := &scope{
		Reconciler: &Reconciler{Clock: clocktesting.NewFakePassiveClock(now)}, pool: &v1alpha1.RunnerPool{},
		view: &view{count: demand.JobCount{Queued: 3}},
	}
	s.pool.Spec.Scaling = v1alpha1.Scaling{MinReplicas: 2, MaxReplicas: 7}

	for name, tc := range map[string]struct {
		change func(*v1alpha1.RunnerPoolSpec)
		want   demand.Input
	}{
		"the defaults": {
			func(*v1alpha1.RunnerPoolSpec) {}, demand.Input{Min: 2, Max: 7, Queued: 3, Now: now, ScaleDownDelay: 5 * time.Minute},
		},
		"a schedule lowers nothing": {
			func(spec *v1alpha1.RunnerPoolSpec) {
				spec.Scaling.Schedules = []v1alpha1.Schedule{{
					Name: "noon", Start: "0 12 * * *", TimeZone: "UTC", Duration: metav1.Duration{Duration: time.Hour}, MinReplicas: 1,
				}}
			}, demand.Input{Min: 2, Max: 7, Queued: 3, Now: now, ScaleDownDelay: 5 * time.Minute, Boundary: now.Add(time.Hour)},
		},
		"all limits": {
			func(spec *v1alpha1.RunnerPoolSpec) {
				spec.Scaling.ScaleDownDelay = limit(4 * time.Minute)
				spec.Lifecycle = &v1alpha1.Lifecycle{IdleTimeout: limit(6 * time.Minute), MaxLifetime: limit(time.Hour)}
			}, demand.Input{
				Min: 2, Max: 7, Queued: 3, Now: now,
				ScaleDownDelay: 4 * time.Minute, IdleTimeout: 6 * time.Minute, MaxLifetime: time.Hour,
			},
		},
	} {
		pool := s.pool.DeepCopy()
		tc.change(&s.pool.Spec)

		got, err := s.newInput()
		if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreUnexported(demand.Input{})); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}

		s.pool = pool
	}
}

// The pool's cluster is read once in a reconcile, however many templates and machines it has.
func TestClusterIsReadOnce(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	reads := 0
	cluster := &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			reads++

			return c.Get(ctx, key, into, opts...)
		},
	}).Build()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.HypervisorClusterRef.Name = "lab"
	pool := &v1alpha1.RunnerPool{}
	pool.Spec.TemplateRef.Name = "a"
	pool.Spec.Placement = &v1alpha1.Placement{TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "b"}}}

	claims := make([]v1alpha1.MachineClaim, 2)
	for i := range claims {
		claims[i].Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: "lab", Node: fmt.Sprint("node-", i)}
	}

	s := &scope{Reconciler: &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}, memory: &memory{}, pool: pool}
	if err := s.findSources(t.Context(), demand.Templates{"a": template, "b": template}); err != nil {
		t.Fatal(err)
	}

	if _, err := s.findUnreachable(t.Context(), claims); err != nil {
		t.Fatal(err)
	}

	if reads != 1 {
		t.Errorf("the cluster was read %d times, want once", reads)
	}
}
