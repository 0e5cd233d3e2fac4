// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// reasonDegraded stops the list of a cluster that has been ready: its API server answers,
// and something of the control plane has failed.
const reasonDegraded = "ControlPlaneDegraded"

// hostedClusterSeen mirrors what HyperShift says of the HostedCluster, whatever the steps
// after it come to.
func hostedClusterSeen(_ context.Context, s *scope) step.Result {
	result := step.Done()
	if s.cluster == nil {
		return result
	}

	conditions := hypershift.Conditions(s.cluster)

	for _, mirror := range [][2]string{
		{hypershift.ValidConfiguration, v1alpha1.ConditionHostedClusterValidConfiguration},
		{hypershift.SupportedHostedCluster, v1alpha1.ConditionHostedClusterSupported},
		{hypershift.ValidReleaseImage, v1alpha1.ConditionHostedClusterValidReleaseImage},
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

// hostedClusterAccepted looks whether HyperShift goes on with the HostedCluster. Where it
// does not, it makes no Service and no control plane, and there is nothing to wait for.
func hostedClusterAccepted(_ context.Context, s *scope) step.Result {
	if refused := hypershift.Refused(s.cluster); refused != nil {
		return step.Stall(v1alpha1.ReasonValidationFailed,
			fmt.Sprintf("HyperShift goes no further with HostedCluster %s: %s: %s",
				client.ObjectKeyFromObject(s.cluster), refused.Type, refused.Message))
	}

	return step.Done()
}

// inTime is a step that is under way for no longer than the bridge allows: then a person
// has to look, though the step goes on by itself when it can.
func inTime(run func(context.Context, *scope) step.Result) func(context.Context, *scope) step.Result {
	return func(ctx context.Context, s *scope) step.Result {
		result := run(ctx, s)
		if result.Pause() == 0 || result.IsFailed() {
			return result
		}

		now := s.Clock.Now()
		if s.bridge.Status.ProvisioningSince == nil {
			since := metav1.NewTime(now)
			s.bridge.Status.ProvisioningSince = &since
		}

		limit := s.bridge.Spec.ProvisioningTimeout.Duration
		if left := limit - now.Sub(s.bridge.Status.ProvisioningSince.Time); left > 0 {
			return step.Wait(min(result.Pause(), left), result.Reason(), result.Message())
		}

		return step.Stall(result.Reason(), fmt.Sprintf("not ready after %s: %s", limit, result.Message()))
	}
}

// controlPlaneReady looks whether the control plane runs the release that is wanted, and is
// well.
func controlPlaneReady(_ context.Context, s *scope) step.Result {
	before := s.bridge.Status.KubeconfigSecretRef != nil

	return controlPlane(hypershift.Conditions(s.cluster), hypershift.RolledOut(s.cluster), before)
}

// controlPlane judges a control plane by HyperShift's conditions, whether its release is
// rolled out, and whether it has been available before.
func controlPlane(conditions []metav1.Condition, rolledOut, before bool) step.Result {
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
