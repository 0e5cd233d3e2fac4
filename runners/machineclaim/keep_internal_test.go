// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Machines are kept that were started and of no use, where their pool wants it; none that ran
// its job, or had none to run.
func TestKeepable(t *testing.T) {
	t.Parallel()

	now := metav1.NowMicro()
	cases := map[string]struct {
		change func(*v1alpha1.MachineClaim)
		want   bool
	}{
		"its runner never came":    {func(*v1alpha1.MachineClaim) {}, true},
		"its bootstrap failed":     {func(c *v1alpha1.MachineClaim) { c.Status.EndReason = "BootstrapFailed" }, true},
		"nobody wants it":          {func(c *v1alpha1.MachineClaim) { c.Spec.Lifecycle.KeepFailed = nil }, false},
		"no pool":                  {func(c *v1alpha1.MachineClaim) { c.Spec.RunnerPoolRef = nil }, false},
		"it has not ended":         {func(c *v1alpha1.MachineClaim) { c.Status.Times.Ended = nil }, false},
		"it never started":         {func(c *v1alpha1.MachineClaim) { c.Status.Times.Started = nil }, false},
		"there is no machine":      {func(c *v1alpha1.MachineClaim) { c.Status.VMRef = nil }, false},
		"no job was left for it":   {func(c *v1alpha1.MachineClaim) { c.Status.EndReason = v1alpha1.EndReasonNoJob }, false},
		"it ran its job":           {func(c *v1alpha1.MachineClaim) { c.Status.EndReason, c.Status.Times.Ready = "JobDone", &now }, false},
		"it was idle for too long": {func(c *v1alpha1.MachineClaim) { c.Status.EndReason, c.Status.Times.Ready = "IdleTimeout", &now }, false},
		"its runner failed in its job": {func(c *v1alpha1.MachineClaim) {
			c.Status.EndReason, c.Status.Times.Ready = "GuestFailed", &now
			c.Status.BootstrapInfo.GuestPhase = string(guest.PhaseFailed)
		}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim := &v1alpha1.MachineClaim{
				Spec: v1alpha1.MachineClaimSpec{
					RunnerPoolRef: &v1alpha1.LocalObjectReference{Name: "linux"},
					Lifecycle:     &v1alpha1.Lifecycle{KeepFailed: &v1alpha1.KeepFailed{Machines: 1}},
				},
				Status: v1alpha1.MachineClaimStatus{
					VMRef: &v1alpha1.VMReference{VMID: "105"}, EndReason: "BootstrapTimeout",
					Times: &v1alpha1.MachineTimes{Started: &now, Ended: &now}, BootstrapInfo: &v1alpha1.BootstrapInfo{},
				},
			}
			tc.change(claim)

			if got := keepable(claim); got != tc.want {
				t.Errorf("keepable is %v, want %v", got, tc.want)
			}
		})
	}
}
