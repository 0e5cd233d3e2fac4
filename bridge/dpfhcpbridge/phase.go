// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// readyMessage is what the status says of a bridge that is ready.
const readyMessage = "the hosted cluster can be used"

// Summarize says in the status what its conditions come to: the reasons that the document
// has for Ready and HostedClusterCreated, the phase and the message.
func Summarize(obj step.Object) {
	bridge, is := obj.(*v1alpha1.DPFHCPBridge)
	if !is {
		return
	}

	conditions := bridge.Status.Conditions

	if created := meta.FindStatusCondition(conditions, v1alpha1.ConditionHostedClusterCreated); created != nil &&
		created.Status == metav1.ConditionUnknown {
		created.Reason = v1alpha1.ReasonNotCreated
	}

	deleting := !bridge.DeletionTimestamp.IsZero()
	bridge.Status.Phase = phase(conditions, deleting)

	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil || deleting {
		if ready != nil {
			bridge.Status.Message = ready.Message
		}

		return
	}

	if ready.Status == metav1.ConditionTrue {
		bridge.Status.ProvisioningSince = nil
		ready.Reason, ready.Message = v1alpha1.ReasonClusterReady, readyMessage
	} else {
		ready.Reason = readyReason(conditions)
	}

	bridge.Status.Message = ready.Message
}

// stop is why the list stopped, and whether a person has to act: what kit/step says of it.
func stop(conditions []metav1.Condition) (reason string, stalled bool) {
	if c := meta.FindStatusCondition(conditions, step.Stalled); c != nil {
		return c.Reason, true
	}

	if c := meta.FindStatusCondition(conditions, step.Reconciling); c != nil {
		return c.Reason, false
	}

	return "", false
}

// made says whether a HostedCluster has been made, or tried to be.
func made(conditions []metav1.Condition) bool {
	created := meta.FindStatusCondition(conditions, v1alpha1.ConditionHostedClusterCreated)

	return created != nil && created.Status != metav1.ConditionUnknown && created.Reason != v1alpha1.ReasonNotCreated
}

// phase sums conditions up. Before anything is made, what is missing is waited for (Pending)
// and what is wrong has Failed; afterwards both have, because a cluster that was promised
// stands on it.
func phase(conditions []metav1.Condition, deleting bool) v1alpha1.DPFHCPBridgePhase {
	reason, stalled := stop(conditions)

	switch {
	case deleting:
		return v1alpha1.PhaseDeleting
	case meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady):
		return v1alpha1.PhaseReady
	case stalled:
		return v1alpha1.PhaseFailed
	case !made(conditions):
		return v1alpha1.PhasePending
	case standsOn(reason), reason == v1alpha1.ReasonAPIServerUnreachable, reason == reasonDegraded:
		return v1alpha1.PhaseFailed
	default:
		return v1alpha1.PhaseProvisioning
	}
}

// standsOn says whether a reason is that something which the bridge stands on is missing or
// not ready. A registry that can't be asked is none: nothing stands on it but an upgrade.
func standsOn(reason string) bool {
	switch reason {
	case v1alpha1.ReasonNotFound, v1alpha1.ReasonNotReady, v1alpha1.ReasonInsufficientResources,
		v1alpha1.ReasonDPFNotInstalled, v1alpha1.ReasonHyperShiftNotInstalled, v1alpha1.ReasonMetalLBNotInstalled:
		return true
	default:
		return false
	}
}

// readyReason is the document's word for why a bridge is not ready.
func readyReason(conditions []metav1.Condition) string {
	reason, stalled := stop(conditions)

	switch reason {
	case v1alpha1.ReasonInUse, v1alpha1.ReasonKeyMissing, v1alpha1.ReasonUnreadable, v1alpha1.ReasonNotDynamic,
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

	if standsOn(reason) || !made(conditions) || stalled {
		return v1alpha1.ReasonValidationFailed
	}

	return v1alpha1.ReasonWaitingForControlPlane
}
