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
)

// shiftedClock is a clock that a test moves forward.
type shiftedClock struct {
	clock.RealClock

	offset atomic.Int64
}

func (c *shiftedClock) Now() time.Time { return c.RealClock.Now().Add(time.Duration(c.offset.Load())) }

// TestProvisioningTimesOut checks that a cluster that is not ready in time has failed, and becomes ready
// when it can. A change of the bridge starts the timeout again.
func TestProvisioningTimesOut(t *testing.T) { //nolint:paralleltest // it simulates HyperShift itself
	clk := &shiftedClock{}
	runAreaAlone(t, clk, installKinds)

	w := newIsolatedFixture(t)
	w.createDPUCluster("b", hypershift.PhaseReady)

	b := w.newBridge("b")
	w.create(b)
	w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "False NodePortPending", "has not created Service")

	if got := w.waitForPhase(b, v1alpha1.PhaseProvisioning); got.Status.ProvisioningSince == nil || got.Spec.ProvisioningTimeout.Duration != time.Hour {
		t.Fatalf("waited for since %v, for %v", got.Status.ProvisioningSince, got.Spec.ProvisioningTimeout)
	}

	clk.offset.Store(int64(time.Hour))
	w.simulateHyperShift(b, controlPlane{conditions: map[string]string{"ReconciliationSucceeded": "False ReconciliationError"}}) // triggers a reconcile
	w.waitForCondition(b, v1alpha1.ConditionReady, "False WaitingForInfrastructure", "not ready after 1h0m0s: HyperShift has not created Service")
	w.waitForPhase(b, v1alpha1.PhaseFailed)

	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.ClusterType = "again" })
	w.waitForPhase(b, v1alpha1.PhaseProvisioning)

	w.simulateReadyHyperShift(b)

	if got := w.waitForPhase(b, v1alpha1.PhaseReady); got.Status.ProvisioningSince != nil {
		t.Errorf("waited for since %v, though it is ready", got.Status.ProvisioningSince)
	}
}
