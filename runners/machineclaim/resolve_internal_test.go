// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// A machine is made where both its template and its cluster are ready, and not where one is.
func TestBothTemplateAndClusterGate(t *testing.T) {
	t.Parallel()

	ready := func(is bool) []metav1.Condition {
		status := metav1.ConditionFalse
		if is {
			status = metav1.ConditionTrue
		}

		return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status, Reason: "x", Message: "why"}}
	}

	for _, tc := range []struct {
		template, cluster bool
		want              string
	}{
		{true, true, "Done"}, {false, true, "TemplateNotReady"}, {true, false, "ClusterNotReady"}, {false, false, "TemplateNotReady"},
	} {
		template, cluster := &v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.HypervisorCluster{}
		template.Status.Conditions, cluster.Status.Conditions = ready(tc.template), ready(tc.cluster)

		if got := mayMake(template, cluster); got.Reason() != tc.want || got.IsDone() != (tc.want == "Done") {
			t.Errorf("template ready %v, cluster ready %v: %s, want %s", tc.template, tc.cluster, got, tc.want)
		}
	}

	if got := mayMake(&v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.HypervisorCluster{}); got.IsDone() {
		t.Error("a template that nobody has looked at is taken for ready")
	}
}
