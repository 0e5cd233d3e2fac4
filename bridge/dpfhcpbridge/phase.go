// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// readyMessage is the message of a bridge that is ready.
const readyMessage = "the hosted cluster can be used"

// Summarize sets the phase, the message and the reasons of Ready and HostedClusterCreated in the status.
// It derives them from the conditions of the steps.
func Summarize(obj step.Object) {
	bridge, ok := obj.(*v1alpha1.DPFHCPBridge)
	if !ok {
		return
	}

	conditions := bridge.Status.Conditions

	if created := meta.FindStatusCondition(conditions, v1alpha1.ConditionHostedClusterCreated); created != nil &&
		created.Status == metav1.ConditionUnknown {
		created.Reason = v1alpha1.ReasonNotCreated
	}

	isDeleting := !bridge.DeletionTimestamp.IsZero()
	bridge.Status.Phase = computePhase(conditions, isDeleting)

	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil || isDeleting {
		if ready != nil {
			bridge.Status.Message = ready.Message
		}

		return
	}

	if ready.Status == metav1.ConditionTrue {
		bridge.Status.ProvisioningSince = nil
		ready.Reason, ready.Message = v1alpha1.ReasonClusterReady, readyMessage
	} else {
		ready.Reason = computeReadyReason(conditions)
	}

	bridge.Status.Message = ready.Message
}

// stopReason returns the reason for which the steps stopped, and whether a person has to act. It reads
// the conditions of kit/step.
func stopReason(conditions []metav1.Condition) (reason string, isStalled bool) {
	if c := meta.FindStatusCondition(conditions, step.Stalled); c != nil {
		return c.Reason, true
	}

	if c := meta.FindStatusCondition(conditions, step.Reconciling); c != nil {
		return c.Reason, false
	}

	return "", false
}

// hasCreationStarted returns whether a HostedCluster was created or its creation was attempted.
func hasCreationStarted(conditions []metav1.Condition) bool {
	created := meta.FindStatusCondition(conditions, v1alpha1.ConditionHostedClusterCreated)

	return created != nil && created.Status != metav1.ConditionUnknown && created.Reason != v1alpha1.ReasonNotCreated
}

// computePhase derives the phase from the conditions. Before the HostedCluster is created, the phase is
// Pending while a dependency is missing and Failed if a dependency is invalid. After that, the phase is
// Failed in both cases, because an existing cluster needs the dependency.
func computePhase(conditions []metav1.Condition, isDeleting bool) v1alpha1.DPFHCPBridgePhase {
	reason, isStalled := stopReason(conditions)

	switch {
	case isDeleting:
		return v1alpha1.PhaseDeleting
	case meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady):
		return v1alpha1.PhaseReady
	case isStalled:
		return v1alpha1.PhaseFailed
	case !hasCreationStarted(conditions):
		return v1alpha1.PhasePending
	case isMissingDependency(reason), reason == v1alpha1.ReasonAPIServerUnreachable, reason == reasonDegraded:
		return v1alpha1.PhaseFailed
	default:
		return v1alpha1.PhaseProvisioning
	}
}

// isMissingDependency returns whether the reason means that a dependency of the bridge is missing or not
// ready. An unreachable registry does not count, because only an upgrade depends on it.
func isMissingDependency(reason string) bool {
	switch reason {
	case v1alpha1.ReasonNotFound, v1alpha1.ReasonNotReady, v1alpha1.ReasonInsufficientResources,
		v1alpha1.ReasonDPFNotInstalled, v1alpha1.ReasonHyperShiftNotInstalled, v1alpha1.ReasonMetalLBNotInstalled:
		return true
	default:
		return false
	}
}

// computeReadyReason returns the reason of Ready for a bridge that is not ready. Ready has fewer reasons than
// the conditions of the steps, so several of them have the same reason.
func computeReadyReason(conditions []metav1.Condition) string {
	reason, isStalled := stopReason(conditions)

	switch reason {
	case v1alpha1.ReasonInUse, v1alpha1.ReasonKeyMissing, v1alpha1.ReasonInvalidData, v1alpha1.ReasonNotDynamic,
		v1alpha1.ReasonImageNotFound, v1alpha1.ReasonImageUnauthorized, v1alpha1.ReasonRegistryUnreachable,
		v1alpha1.ReasonVersionNotSupported, v1alpha1.ReasonVIPConflict, v1alpha1.ReasonVIPNotInPool:
		return v1alpha1.ReasonValidationFailed
	case v1alpha1.ReasonDeleted, v1alpha1.ReasonAPIServerUnreachable:
		return v1alpha1.ReasonAPIServerUnreachable
	case v1alpha1.ReasonLoadBalancerPending, v1alpha1.ReasonNodePortPending, v1alpha1.ReasonServiceCreationFailed,
		v1alpha1.ReasonWaitingForNodes, v1alpha1.ReasonNodePoolCreationFailed, v1alpha1.ReasonNodesUnhealthy,
		v1alpha1.ReasonWaitingForInfrastructure, v1alpha1.ReasonWaitingForIgnition, v1alpha1.ReasonIgnitionUnreachable:
		return v1alpha1.ReasonWaitingForInfrastructure
	}

	if isMissingDependency(reason) || !hasCreationStarted(conditions) || isStalled {
		return v1alpha1.ReasonValidationFailed
	}

	return v1alpha1.ReasonWaitingForControlPlane
}
