// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"strings"
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

	type eventCase struct {
		before, after v1alpha1.DPFHCPBridgeStatus
		want          []string
	}

	cases := map[string]eventCase{
		"a failed check":  {v1alpha1.DPFHCPBridgeStatus{}, missing, []string{"Warning NotFound says why", "Normal Pending words"}},
		"nothing changed": {missing, missing, nil},
		"a passed check":  {missing, valid, []string{"Normal Valid says why", "Normal Provisioning words"}},
		"a failure":       {valid, failed, []string{"Warning NotReady says why", "Warning Failed words"}},
	}

	for _, condition := range Conditions() {
		if condition != "" {
			stopped := status(v1alpha1.PhaseFailed, metav1.ConditionFalse, v1alpha1.ReasonNotFound)
			stopped.Conditions[0].Type = condition
			cases[condition+" fails"] = eventCase{v1alpha1.DPFHCPBridgeStatus{}, stopped, []string{"Warning NotFound says why", "Warning Failed words"}}
		}
	}

	for name, tc := range cases {
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

// Policies that differ have a warning, once for each change of the bridge.
func TestDifferentPoliciesHaveAWarning(t *testing.T) {
	t.Parallel()

	const high, single = v1alpha1.HighlyAvailable, v1alpha1.SingleReplica

	for _, tc := range []struct {
		control, infra v1alpha1.AvailabilityPolicy
		observed       int64
		want           bool
	}{{high, high, 1, false}, {single, single, 1, false}, {high, single, 1, true}, {single, high, 1, true}, {high, single, 2, false}} {
		recorder := events.NewFakeRecorder(10)
		bridge := &v1alpha1.DPFHCPBridge{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: v1alpha1.DPFHCPBridgeSpec{
			ControlPlaneAvailabilityPolicy: tc.control, InfrastructureAvailabilityPolicy: tc.infra,
		}}
		s := &scope{Reconciler: &Reconciler{Recorder: recorder}, bridge: bridge}
		s.recordEvents(&v1alpha1.DPFHCPBridge{Status: v1alpha1.DPFHCPBridgeStatus{ObservedGeneration: tc.observed}})
		close(recorder.Events)

		got := <-recorder.Events
		if strings.HasPrefix(got, "Warning MismatchedAvailability ") != tc.want || !tc.want && got != "" {
			t.Errorf("%s and %s, generation %d observed: event %q, want a warning: %v", tc.control, tc.infra, tc.observed, got, tc.want)
		}
	}
}
