// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/dpfhcpbridge"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// phaseFixture is a bridge whose steps return the results that a test sets.
type phaseFixture struct {
	t      *testing.T
	runner *step.Reconciler
	bridge *v1alpha1.DPFHCPBridge
}

// newPhaseFixture returns a fixture that keeps the bridge in memory, because only the computation from
// conditions is tested.
func newPhaseFixture(t *testing.T) *phaseFixture {
	t.Helper()

	bridge := &v1alpha1.DPFHCPBridge{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", Generation: 1}}

	return &phaseFixture{t: t, bridge: bridge, runner: &step.Reconciler{
		Client: discardClient{}, Controller: "test", Summarize: dpfhcpbridge.Summarize,
	}}
}

// discardClient discards status writes. The reconcile changes the bridge in memory.
type discardClient struct{ client.Client }

// Status returns a writer that discards everything.
func (discardClient) Status() client.SubResourceWriter { return discardStatusWriter{} }

type discardStatusWriter struct{ client.SubResourceWriter }

// Patch discards the patch.
func (discardStatusWriter) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return nil
}

// reconcile runs the steps. The steps before index place are done, and the step at place returns result.
// If place is beyond the list, all steps are done.
func (w *phaseFixture) reconcile(place int, result step.Result) v1alpha1.DPFHCPBridgePhase {
	w.t.Helper()

	var steps []step.Step[any]

	for i, condition := range dpfhcpbridge.Conditions() {
		steps = append(steps, step.Step[any]{Name: "Named", Condition: condition, Run: func(context.Context, any) step.Result {
			switch {
			case i < place:
				return step.Done()
			default:
				return result
			}
		}})
	}

	_, err := step.ReconcileSteps(w.t.Context(), w.runner, w.bridge, steps, nil)
	if err != nil {
		w.t.Error(err)
	}

	return w.bridge.Status.Phase
}

func stepIndex(condition string) int { return slices.Index(dpfhcpbridge.Conditions(), condition) }

// TestPhaseOfEachReason checks the phase and the reason of Ready for each condition and reason, before
// and after the HostedCluster is created.
func TestPhaseOfEachReason(t *testing.T) {
	t.Parallel()

	const (
		pending, provisioning, failed = v1alpha1.PhasePending, v1alpha1.PhaseProvisioning, v1alpha1.PhaseFailed
		invalid                       = v1alpha1.ReasonValidationFailed
		infrastructure, control       = v1alpha1.ReasonWaitingForInfrastructure, v1alpha1.ReasonWaitingForControlPlane
	)

	wait := func(reason string) step.Result { return step.Wait(0, reason, "words") }
	stall := func(reason string) step.Result { return step.Stall(reason, "words") }
	after := stepIndex(v1alpha1.ConditionServiceExposureReady) + 1 // checkControlPlane
	platform, dpus := stepIndex(v1alpha1.ConditionPlatformReady), stepIndex(v1alpha1.ConditionDPUClusterValid)
	secret, class := stepIndex(v1alpha1.ConditionSecretsValid), stepIndex(v1alpha1.ConditionStorageClassValid)
	image, cluster := stepIndex(v1alpha1.ConditionReleaseImageValid), stepIndex(v1alpha1.ConditionHostedClusterCreated)
	exposure, nodes := stepIndex(v1alpha1.ConditionServiceExposureReady), stepIndex(v1alpha1.ConditionNodePoolReady)

	rows := []struct {
		place             int
		result            step.Result
		first, then       v1alpha1.DPFHCPBridgePhase // before and after the HostedCluster is created
		ready, readyAfter string
	}{
		{platform, wait(v1alpha1.ReasonDPFNotInstalled), pending, failed, invalid, invalid},
		{platform, wait(v1alpha1.ReasonHyperShiftNotInstalled), pending, failed, invalid, invalid},
		{platform, wait(v1alpha1.ReasonMetalLBNotInstalled), pending, failed, invalid, invalid},
		{dpus, wait(v1alpha1.ReasonNotFound), pending, failed, invalid, invalid},
		{dpus, wait(v1alpha1.ReasonNotReady), pending, failed, invalid, invalid},
		{dpus, wait(v1alpha1.ReasonInsufficientResources), pending, failed, invalid, invalid},
		{dpus, stall(v1alpha1.ReasonInUse), failed, failed, invalid, invalid},
		{secret, wait(v1alpha1.ReasonNotFound), pending, failed, invalid, invalid},
		{secret, stall(v1alpha1.ReasonKeyMissing), failed, failed, invalid, invalid},
		{secret, stall(v1alpha1.ReasonInvalidData), failed, failed, invalid, invalid},
		{class, wait(v1alpha1.ReasonNotFound), pending, failed, invalid, invalid},
		{class, stall(v1alpha1.ReasonNotDynamic), failed, failed, invalid, invalid},
		{image, stall(v1alpha1.ReasonImageNotFound), failed, failed, invalid, invalid},
		{image, stall(v1alpha1.ReasonImageUnauthorized), failed, failed, invalid, invalid},
		{image, stall(v1alpha1.ReasonVersionNotSupported), failed, failed, invalid, invalid},
		{image, wait(v1alpha1.ReasonRegistryUnreachable), pending, provisioning, invalid, invalid},
		{image + 1, stall(v1alpha1.ReasonVIPConflict), failed, failed, invalid, invalid},
		{image + 1, stall(v1alpha1.ReasonVIPNotInPool), failed, failed, invalid, invalid},
		{cluster, stall(v1alpha1.ReasonCreationFailed), failed, failed, invalid, invalid},
		{cluster, wait(v1alpha1.ReasonCreationFailed), provisioning, provisioning, control, control},
		{cluster, stall(v1alpha1.ReasonDeleted), failed, failed, "APIServerUnreachable", "APIServerUnreachable"},
		{cluster + 1, stall(v1alpha1.ReasonNodePoolCreationFailed), failed, failed, infrastructure, infrastructure},
		{exposure, wait(v1alpha1.ReasonLoadBalancerPending), provisioning, provisioning, infrastructure, infrastructure},
		{exposure, wait(v1alpha1.ReasonNodePortPending), provisioning, provisioning, infrastructure, infrastructure},
		{exposure, wait(v1alpha1.ReasonServiceCreationFailed), provisioning, provisioning, infrastructure, infrastructure},
		{after, wait(v1alpha1.ReasonWaitingForControlPlane), provisioning, provisioning, control, control},
		{after, wait(v1alpha1.ReasonAPIServerUnreachable), failed, failed, "APIServerUnreachable", "APIServerUnreachable"},
		{after, wait("ControlPlaneDegraded"), failed, failed, control, control},
		{nodes, wait(v1alpha1.ReasonWaitingForNodes), provisioning, provisioning, infrastructure, infrastructure},
		{nodes, wait(v1alpha1.ReasonNodesUnhealthy), provisioning, provisioning, infrastructure, infrastructure},
	}
	for _, row := range rows {
		t.Run(fmt.Sprintf("%s at %d", row.result, row.place), func(t *testing.T) {
			t.Parallel()

			w := newPhaseFixture(t)
			if got := w.reconcile(row.place, row.result); got != row.first {
				t.Errorf("phase %s, want %s", got, row.first)
			}

			w.checkReady(metav1.ConditionFalse, row.ready)

			if got := w.reconcile(len(dpfhcpbridge.Conditions()), step.Done()); got != v1alpha1.PhaseReady {
				t.Errorf("phase %s when all is done", got)
			}

			w.checkReady(metav1.ConditionTrue, v1alpha1.ReasonClusterReady)

			if got := w.reconcile(row.place, row.result); got != row.then {
				t.Errorf("phase %s after it was ready, want %s", got, row.then)
			}

			w.checkReady(metav1.ConditionFalse, row.readyAfter)
		})
	}
}

func (w *phaseFixture) checkReady(status metav1.ConditionStatus, reason string) {
	w.t.Helper()

	ready := meta.FindStatusCondition(w.bridge.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status != status || ready.Reason != reason {
		w.t.Errorf("Ready is %+v, want %s %s", ready, status, reason)
	}

	if w.bridge.Status.Message != ready.Message || w.bridge.Status.Message == "" {
		w.t.Errorf("the status is %q, Ready %q", w.bridge.Status.Message, ready.Message)
	}

	if status == metav1.ConditionFalse && ready.Message != "words" {
		w.t.Errorf("Ready is %q, and not what its step says", ready.Message)
	}
}

// allowedTransitions returns the transitions of the requirements document and those that the document
// leaves open. A bridge that failed before it created anything may wait again, a bridge that was ready
// becomes ready again when the problem is fixed, and the first reconcile may lead to any phase.
func allowedTransitions() map[v1alpha1.DPFHCPBridgePhase][]v1alpha1.DPFHCPBridgePhase {
	return map[v1alpha1.DPFHCPBridgePhase][]v1alpha1.DPFHCPBridgePhase{
		v1alpha1.PhasePending:      {v1alpha1.PhaseProvisioning, v1alpha1.PhaseFailed},
		v1alpha1.PhaseProvisioning: {v1alpha1.PhaseReady, v1alpha1.PhaseFailed},
		v1alpha1.PhaseReady:        {v1alpha1.PhaseFailed, v1alpha1.PhaseProvisioning},
		v1alpha1.PhaseFailed:       {v1alpha1.PhaseProvisioning, v1alpha1.PhasePending, v1alpha1.PhaseReady},
	}
}

// TestPhasesFollowEachOther checks that each phase follows an allowed phase for any sequence of
// reconciles, and that a bridge that has created its HostedCluster is never Pending again.
func TestPhasesFollowEachOther(t *testing.T) {
	t.Parallel()

	stops := gopter.CombineGens(gen.IntRange(0, len(dpfhcpbridge.Conditions())), gen.IntRange(0, 2)).Map(func(v []any) [2]int {
		return [2]int{v[0].(int), v[1].(int)}
	})

	property.Check(t, "phases follow each other as documented", property.Options{Runs: 150}, prop.ForAll(func(passes [][2]int) string {
		w := newPhaseFixture(t)
		last := v1alpha1.PhasePending
		made := false

		for _, p := range passes {
			// After its creation, the HostedCluster cannot be reported as not created. The reconcile that creates it stops
			// there, because the HostedCluster takes longer than one reconcile.
			place := p[0]
			if cluster := stepIndex(v1alpha1.ConditionHostedClusterCreated); !made && place > cluster {
				place, made = cluster+1, true
			}

			result := []step.Result{
				step.Wait(0, v1alpha1.ReasonNotFound, "words"), step.Stall("Trouble", "words"), step.Wait(0, "Going", "words"),
			}[p[1]]

			now := w.reconcile(place, result)
			if now != last && !slices.Contains(allowedTransitions()[last], now) {
				return fmt.Sprintf("%s follows %s (stopped at %d: %s)", now, last, place, result)
			}

			if made && now == v1alpha1.PhasePending {
				return "Pending, although the HostedCluster was created"
			}

			last = now
		}

		return ""
	}, gen.SliceOfN(8, stops)))
}

func TestDeletionIsAPhase(t *testing.T) {
	t.Parallel()

	for _, conditions := range [][]metav1.Condition{
		nil,
		{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}},
		{{Type: step.Stalled, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDeleted}},
	} {
		for _, before := range []v1alpha1.DPFHCPBridgePhase{
			"", v1alpha1.PhasePending, v1alpha1.PhaseProvisioning, v1alpha1.PhaseReady, v1alpha1.PhaseFailed, v1alpha1.PhaseDeleting,
		} {
			bridge := &v1alpha1.DPFHCPBridge{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: new(metav1.Now())}}
			bridge.Status.Conditions, bridge.Status.Phase = slices.Clone(conditions), before
			dpfhcpbridge.Summarize(bridge)

			if got := bridge.Status.Phase; got != v1alpha1.PhaseDeleting {
				t.Errorf("phase %s after %q", got, before)
			}
		}
	}
}
