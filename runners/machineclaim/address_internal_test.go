// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

func TestAddress(t *testing.T) {
	t.Parallel()

	birth := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	moment := metav1.NewMicroTime(birth)
	addressed := &v1alpha1.NetworkInfo{Addresses: []string{"10.0.0.1/24"}}
	said := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{
			{Type: v1alpha1.ConditionTemplateResolved, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(birth)},
			{Type: v1alpha1.ConditionAddressAllocated, Status: status, Reason: reason},
		}
	}
	resolved := said("", "")[:1]

	cases := map[string]struct {
		mode   string
		status v1alpha1.MachineClaimStatus
		after  time.Duration
		// reason is empty where the step is done.
		reason string
	}{
		"no pool":                      {mode: v1alpha1.NetworkModeDHCP},
		"it runs without":              {status: v1alpha1.MachineClaimStatus{Times: &v1alpha1.MachineTimes{Started: &moment}}},
		"template just resolved":       {reason: "AddressPending"},
		"nobody has answered yet":      {status: v1alpha1.MachineClaimStatus{Conditions: resolved}, after: 59 * time.Second, reason: "AddressPending"},
		"nobody answers":               {status: v1alpha1.MachineClaimStatus{Conditions: resolved}, after: time.Minute, reason: ReasonNetworkingOff},
		"it is told why not":           {status: v1alpha1.MachineClaimStatus{Conditions: said("False", "PoolExhausted")}, after: time.Hour, reason: "PoolExhausted"},
		"it has one":                   {status: v1alpha1.MachineClaimStatus{Conditions: said("True", "Allocated"), NetworkInfo: addressed}},
		"another machine has the same": {status: v1alpha1.MachineClaimStatus{Conditions: said("False", "AddressConflict"), NetworkInfo: addressed}, reason: "AddressConflict"},
		"addresses without the word":   {status: v1alpha1.MachineClaimStatus{Conditions: resolved, NetworkInfo: addressed}, reason: "AddressPending"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			network := &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{}}}
			if tc.mode != "" {
				network.Mode = tc.mode
			}

			s := &scope{
				Reconciler: &Reconciler{Clock: clocktesting.NewFakePassiveClock(birth.Add(tc.after))},
				claim:      &v1alpha1.MachineClaim{Status: tc.status},
				template:   &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{Network: network}},
			}

			got := address(t.Context(), s)
			if got.IsDone() != (tc.reason == "") || (tc.reason != "" && got.Reason() != tc.reason) {
				t.Errorf("done %t, reason %q; want reason %q", got.IsDone(), got.Reason(), tc.reason)
			}
		})
	}
}
