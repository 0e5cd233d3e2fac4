// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// A failed check, a check that passes, and a change of the phase each have an event, and an unchanged state has none.
func TestEventsOfTransitions(t *testing.T) {
	t.Parallel()

	status := func(phase v1alpha1.DPFHCPBridgePhase, condition metav1.ConditionStatus, reason string) v1alpha1.DPFHCPBridgeStatus {
		return v1alpha1.DPFHCPBridgeStatus{Phase: phase, Message: "words", Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionDPUClusterValid, Status: condition, Reason: reason, Message: "says why"},
		}}
	}
	missing := status(v1alpha1.PhasePending, metav1.ConditionFalse, v1alpha1.ReasonNotFound)
	valid := status(v1alpha1.PhaseProvisioning, metav1.ConditionTrue, v1alpha1.ReasonValid)
	failed := status(v1alpha1.PhaseFailed, metav1.ConditionFalse, v1alpha1.ReasonNotReady)

	for name, tc := range map[string]struct {
		before, after v1alpha1.DPFHCPBridgeStatus
		want          []string
	}{
		"a failed check":  {v1alpha1.DPFHCPBridgeStatus{}, missing, []string{"Warning NotFound says why", "Normal Pending words"}},
		"nothing changed": {missing, missing, nil},
		"a passed check":  {missing, valid, []string{"Normal Valid says why", "Normal Provisioning words"}},
		"a failure":       {valid, failed, []string{"Warning NotReady says why", "Warning Failed words"}},
	} {
		recorder := events.NewFakeRecorder(10)
		s := &scope{Reconciler: &Reconciler{Recorder: recorder}, bridge: &v1alpha1.DPFHCPBridge{Status: tc.after}}
		s.recordEvents(&v1alpha1.DPFHCPBridge{Status: tc.before})
		close(recorder.Events)

		var got []string
		for event := range recorder.Events {
			got = append(got, event)
		}

		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: events (-want +got):\n%s", name, diff)
		}
	}
}
