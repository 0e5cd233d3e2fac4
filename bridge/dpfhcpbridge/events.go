// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

const (
	actionCheck     = "Check"
	mismatchMessage = "controlPlaneAvailabilityPolicy and infrastructureAvailabilityPolicy differ. " +
		"This is allowed but usually not intended."
)

// eventConditions returns the types of the conditions whose changes are recorded as events.
func eventConditions() []string {
	return []string{
		v1alpha1.ConditionPlatformReady, v1alpha1.ConditionDPUClusterValid, v1alpha1.ConditionSecretsValid,
		v1alpha1.ConditionStorageClassValid, v1alpha1.ConditionReleaseImageValid, v1alpha1.ConditionHostedClusterCreated,
		v1alpha1.ConditionServiceExposureReady, v1alpha1.ConditionIgnitionConfigured, v1alpha1.ConditionNodePoolReady,
	}
}

// recordEvents records events for what has changed since the bridge was read. before is the bridge as it
// was read.
func (s *scope) recordEvents(before *v1alpha1.DPFHCPBridge) {
	bridge := s.bridge
	event := func(kind, reason, message string) {
		s.Recorder.Eventf(bridge, nil, kind, reason, actionCheck, "%s", message)
	}

	if bridge.DeletionTimestamp.IsZero() && before.Status.ObservedGeneration != bridge.Generation &&
		bridge.Spec.ControlPlaneAvailabilityPolicy != bridge.Spec.InfrastructureAvailabilityPolicy {
		event(corev1.EventTypeWarning, v1alpha1.EventMismatchedAvailability, mismatchMessage)
	}

	for _, name := range eventConditions() {
		previous := meta.FindStatusCondition(before.Status.Conditions, name)
		current := meta.FindStatusCondition(bridge.Status.Conditions, name)

		switch {
		case current == nil, current.Status == metav1.ConditionUnknown,
			previous != nil && previous.Status == current.Status && previous.Reason == current.Reason:
			// nothing to record
		case current.Status == metav1.ConditionTrue:
			event(corev1.EventTypeNormal, current.Reason, current.Message)
		case isProgressReason(current.Reason):
			event(corev1.EventTypeNormal, current.Reason, current.Message)
		default:
			event(corev1.EventTypeWarning, current.Reason, current.Message)
		}
	}

	if phase := bridge.Status.Phase; phase != before.Status.Phase && phase != "" {
		kind := corev1.EventTypeNormal
		if phase == v1alpha1.PhaseFailed {
			kind = corev1.EventTypeWarning
		}

		event(kind, string(phase), bridge.Status.Message)
	}
}

// isProgressReason returns whether the reason means that the operation is in progress.
func isProgressReason(reason string) bool {
	switch reason {
	case v1alpha1.ReasonLoadBalancerPending, v1alpha1.ReasonNodePortPending, v1alpha1.ReasonWaitingForNodes,
		v1alpha1.ReasonWaitingForIgnition, v1alpha1.ReasonNotCreated:
		return true
	default:
		return false
	}
}
