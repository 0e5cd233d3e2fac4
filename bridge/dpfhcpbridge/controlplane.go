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

// reasonDegraded is the reason for a cluster that was ready before, whose API server is available and
// whose control plane is degraded.
const reasonDegraded = "ControlPlaneDegraded"

// mirrorHostedClusterConditions copies the HostedCluster's conditions to the bridge. They are reported
// whatever the later steps return.
func mirrorHostedClusterConditions(_ context.Context, s *scope) step.Result {
	result := step.Done()
	if s.hostedCluster == nil {
		return result
	}

	conditions := hypershift.Conditions(s.hostedCluster)

	for _, mirror := range []struct{ from, to string }{
		{hypershift.ValidConfiguration, v1alpha1.ConditionHostedClusterValidConfiguration},
		{hypershift.SupportedHostedCluster, v1alpha1.ConditionHostedClusterSupported},
		{hypershift.ValidReleaseImage, v1alpha1.ConditionHostedClusterValidReleaseImage},
		{hypershift.Available, v1alpha1.ConditionHostedClusterAvailable},
		{hypershift.Progressing, v1alpha1.ConditionHostedClusterProgressing},
		{hypershift.Degraded, v1alpha1.ConditionHostedClusterDegraded},
	} {
		if c := meta.FindStatusCondition(conditions, mirror.from); c != nil && c.Status != "" {
			result = result.WithCondition(mirror.to, c.Status, c.Reason, c.Message)
		}
	}

	return result
}

// checkHostedClusterAccepted checks that HyperShift continues with the HostedCluster. If HyperShift does
// not, it creates neither a Service nor a control plane, so that waiting does not help.
func checkHostedClusterAccepted(_ context.Context, s *scope) step.Result {
	if refused := hypershift.BlockingCondition(s.hostedCluster); refused != nil {
		return step.Stall(v1alpha1.ReasonValidationFailed,
			fmt.Sprintf("HyperShift does not continue with HostedCluster %s: %s: %s",
				client.ObjectKeyFromObject(s.hostedCluster), refused.Type, refused.Message))
	}

	return step.Done()
}

// withProvisioningTimeout wraps a step so that it stalls if it still waits after the bridge's
// provisioningTimeout. The step still continues when it can.
func withProvisioningTimeout(run func(context.Context, *scope) step.Result) func(context.Context, *scope) step.Result {
	return func(ctx context.Context, s *scope) step.Result {
		result := run(ctx, s)
		if result.RequeueAfter() == 0 || result.IsFailed() { // the step does not wait
			return result
		}

		now := s.Clock.Now()
		if s.bridge.Status.ProvisioningSince == nil {
			since := metav1.NewTime(now)
			s.bridge.Status.ProvisioningSince = &since
		}

		limit := s.bridge.Spec.ProvisioningTimeout.Duration
		if remaining := limit - now.Sub(s.bridge.Status.ProvisioningSince.Time); remaining > 0 {
			return step.Wait(min(result.RequeueAfter(), remaining), result.Reason(), result.Message())
		}

		return step.Stall(result.Reason(), fmt.Sprintf("the cluster is not ready after %s: %s", limit, result.Message()))
	}
}

// checkControlPlane checks that the control plane runs the desired release, is available and is not
// degraded.
func checkControlPlane(_ context.Context, s *scope) step.Result {
	wasAvailable := s.bridge.Status.KubeconfigSecretRef != nil

	return evaluateControlPlane(hypershift.Conditions(s.hostedCluster), hypershift.IsRolledOut(s.hostedCluster), wasAvailable)
}

// evaluateControlPlane returns the result for a control plane with the given conditions. isRolledOut is
// whether its release is rolled out, and wasAvailable is whether it has been available before.
func evaluateControlPlane(conditions []metav1.Condition, isRolledOut, wasAvailable bool) step.Result {
	available := meta.FindStatusCondition(conditions, hypershift.Available)
	degraded := meta.FindStatusCondition(conditions, hypershift.Degraded)

	switch {
	case available == nil:
		return step.Wait(resyncInterval, v1alpha1.ReasonWaitingForControlPlane,
			"HyperShift has not reported the state of the control plane yet")
	case !isRolledOut:
		return step.Wait(resyncInterval, v1alpha1.ReasonWaitingForControlPlane,
			"the release is being rolled out"+formatCause(available))
	case available.Status != metav1.ConditionTrue && wasAvailable:
		return step.Wait(resyncInterval, v1alpha1.ReasonAPIServerUnreachable,
			"the control plane is no longer available"+formatCause(available))
	case available.Status != metav1.ConditionTrue:
		return step.Wait(resyncInterval, v1alpha1.ReasonWaitingForControlPlane,
			"the control plane is not available yet"+formatCause(available))
	case degraded != nil && degraded.Status == metav1.ConditionTrue && wasAvailable:
		return step.Wait(resyncInterval, reasonDegraded, "the control plane is degraded"+formatCause(degraded))
	case degraded != nil && degraded.Status == metav1.ConditionTrue:
		return step.Wait(resyncInterval, v1alpha1.ReasonWaitingForControlPlane,
			"parts of the control plane are not ready yet"+formatCause(degraded))
	default:
		return step.Done()
	}
}

// formatCause returns ": " and the condition's message, or the empty string if the condition has no
// message or is Available=True.
func formatCause(condition *metav1.Condition) string {
	if condition.Status == metav1.ConditionTrue && condition.Type == hypershift.Available || condition.Message == "" {
		return ""
	}

	return ": " + condition.Message
}
