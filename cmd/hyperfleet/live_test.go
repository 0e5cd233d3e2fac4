// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
)

// TestPoolWithoutDemandSource checks that a pool without working demand sources is not shown as ready.
func TestPoolWithoutDemandSource(t *testing.T) {
	t.Parallel()

	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse

	for name, tc := range map[string]struct {
		ready, sources metav1.ConditionStatus
		webhook        bool
		reason, want   string
	}{
		"ready":              {ready: yes, sources: yes, want: "Ready"},
		"demand is unknown":  {ready: yes, want: "Ready"},
		"no demand source":   {ready: yes, sources: no, want: "Sources"},
		"webhook only":       {ready: yes, sources: no, webhook: true, want: "Ready"},
		"not ready":          {ready: no, sources: no, want: "Ready"},
		"not reconciled yet": {want: "NotReconciled"},
		"former reason":      {ready: no, reason: "NodeSetAside", want: "NodeExcluded"},
	} {
		pool := &v1alpha1.RunnerPool{}

		for _, condition := range []metav1.Condition{
			{Type: "Ready", Status: tc.ready, Reason: cmp.Or(tc.reason, "Ready")}, {Type: "DemandSourcesReady", Status: tc.sources, Reason: "Sources"},
		} {
			if condition.Status != "" {
				pool.Status.Conditions = append(pool.Status.Conditions, condition)
			}
		}

		if tc.webhook {
			pool.Spec.Workload.Webhook = &v1alpha1.Webhook{}
		}

		if got := live.NewPool(pool).Ready.Reason; got != tc.want {
			t.Errorf("%s: the state is %s, want %s", name, got, tc.want)
		}
	}
}
