// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// reasonDegraded stops the list of a cluster that has been ready: its API server answers,
// and something of the control plane has failed.
const reasonDegraded = "ControlPlaneDegraded"

// controlPlaneReady looks whether the control plane runs the release that is wanted, and is
// well. What HyperShift says of it is mirrored.
func controlPlaneReady(_ context.Context, s *scope) step.Result {
	conditions := hypershift.Conditions(s.cluster)
	result := controlPlane(conditions, hypershift.RolledOut(s.cluster), s.bridge.Status.KubeconfigSecretRef != nil)

	for _, mirror := range [][2]string{
		{hypershift.Available, v1alpha1.ConditionHostedClusterAvailable},
		{hypershift.Progressing, v1alpha1.ConditionHostedClusterProgressing},
		{hypershift.Degraded, v1alpha1.ConditionHostedClusterDegraded},
	} {
		if c := meta.FindStatusCondition(conditions, mirror[0]); c != nil && c.Status != "" {
			result = result.Also(mirror[1], c.Status, c.Reason, c.Message)
		}
	}

	return result
}

// controlPlane judges a control plane by HyperShift's conditions, whether its release is
// rolled out, and whether it has been available before.
func controlPlane(conditions []metav1.Condition, rolledOut, before bool) step.Result {
	if bad := meta.FindStatusCondition(conditions, hypershift.ValidReleaseImage); bad != nil && bad.Status == metav1.ConditionFalse {
		return step.Wait(lookAgain, v1alpha1.ReasonWaitingForControlPlane, "HyperShift does not take the release image: "+bad.Message)
	}

	available := meta.FindStatusCondition(conditions, hypershift.Available)
	degraded := meta.FindStatusCondition(conditions, hypershift.Degraded)

	switch {
	case available == nil:
		return step.Wait(lookAgain, v1alpha1.ReasonWaitingForControlPlane,
			"HyperShift has not said anything of the control plane yet")
	case !rolledOut:
		return step.Wait(lookAgain, v1alpha1.ReasonWaitingForControlPlane, "the release is being rolled out"+because(available))
	case available.Status != metav1.ConditionTrue && before:
		return step.Wait(lookAgain, v1alpha1.ReasonAPIServerUnreachable,
			"the control plane is not available any more"+because(available))
	case available.Status != metav1.ConditionTrue:
		return step.Wait(lookAgain, v1alpha1.ReasonWaitingForControlPlane, "the control plane is not available yet"+because(available))
	case degraded != nil && degraded.Status == metav1.ConditionTrue && before:
		return step.Wait(lookAgain, reasonDegraded, "the control plane is degraded"+because(degraded))
	case degraded != nil && degraded.Status == metav1.ConditionTrue:
		return step.Wait(lookAgain, v1alpha1.ReasonWaitingForControlPlane, "the control plane is not whole yet"+because(degraded))
	default:
		return step.Done()
	}
}

// because is what HyperShift says to a condition.
func because(condition *metav1.Condition) string {
	if condition.Status == metav1.ConditionTrue && condition.Type == hypershift.Available || condition.Message == "" {
		return ""
	}

	return ": " + condition.Message
}
