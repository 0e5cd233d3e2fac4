// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
)

// shifted is a clock that a test sets forward.
type shifted struct {
	clock.RealClock

	by atomic.Int64
}

func (c *shifted) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.by.Load())) }

// A cluster that does not get ready in time has failed, and is ready all the same when it
// gets there. A change of the bridge gives it its time again.
func TestProvisioningTimesOut(t *testing.T) { //nolint:paralleltest // it plays HyperShift itself
	clk := &shifted{}
	alone(t, clk, crds.Install)

	w := newWorldAlone(t)
	w.dpuCluster("b", hypershift.PhaseReady)

	b := w.bridge("b")
	w.create(b)
	w.says(b, v1alpha1.ConditionServiceExposureReady, "False NodePortPending", "has not made Service")

	if got := w.reaches(b, v1alpha1.PhaseProvisioning); got.Status.ProvisioningSince == nil || got.Spec.ProvisioningTimeout.Duration != time.Hour {
		t.Fatalf("waited for since %v, for %v", got.Status.ProvisioningSince, got.Spec.ProvisioningTimeout)
	}

	clk.by.Store(int64(time.Hour))
	w.play(b, plane{conditions: map[string]string{"ReconciliationSucceeded": "False ReconciliationError"}}) // it is looked at
	w.says(b, v1alpha1.ConditionReady, "False WaitingForInfrastructure", "not ready after 1h0m0s: HyperShift has not made Service")
	w.reaches(b, v1alpha1.PhaseFailed)

	w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.ProvisioningTimeout.Duration = 2 * time.Hour })
	w.reaches(b, v1alpha1.PhaseProvisioning)

	w.hyperShift(b)

	if got := w.reaches(b, v1alpha1.PhaseReady); got.Status.ProvisioningSince != nil {
		t.Errorf("waited for since %v, though it is ready", got.Status.ProvisioningSince)
	}
}
