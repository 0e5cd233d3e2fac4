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
	actionCheck  = "Check"
	mismatchText = "controlPlaneAvailabilityPolicy and infrastructureAvailabilityPolicy differ: " +
		"this is allowed, and mostly not meant"
)

// announced are the conditions whose changes are told by events.
func announced() []string {
	return []string{
		v1alpha1.ConditionPlatformReady, v1alpha1.ConditionDPUClusterValid, v1alpha1.ConditionSecretsValid,
		v1alpha1.ConditionStorageClassValid, v1alpha1.ConditionReleaseImageValid, v1alpha1.ConditionHostedClusterCreated,
		v1alpha1.ConditionServiceExposureReady, v1alpha1.ConditionIgnitionConfigured, v1alpha1.ConditionNodePoolReady,
	}
}

// announce tells by events what has changed since before.
func (s *scope) announce(before *v1alpha1.DPFHCPBridge) {
	bridge := s.bridge
	event := func(kind, reason, message string) {
		s.Recorder.Eventf(bridge, nil, kind, reason, actionCheck, "%s", message)
	}

	if bridge.DeletionTimestamp.IsZero() && before.Status.ObservedGeneration != bridge.Generation &&
		bridge.Spec.ControlPlaneAvailabilityPolicy != bridge.Spec.InfrastructureAvailabilityPolicy {
		event(corev1.EventTypeWarning, v1alpha1.EventMismatchedAvailability, mismatchText)
	}

	for _, name := range announced() {
		was, is := meta.FindStatusCondition(before.Status.Conditions, name), meta.FindStatusCondition(bridge.Status.Conditions, name)

		switch {
		case is == nil, is.Status == metav1.ConditionUnknown, was != nil && was.Status == is.Status && was.Reason == is.Reason:
		case is.Status == metav1.ConditionTrue:
			event(corev1.EventTypeNormal, is.Reason, is.Message)
		case waiting(is.Reason):
			event(corev1.EventTypeNormal, is.Reason, is.Message)
		default:
			event(corev1.EventTypeWarning, is.Reason, is.Message)
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

// waiting says whether a reason is that of something which is under way.
func waiting(reason string) bool {
	switch reason {
	case v1alpha1.ReasonLoadBalancerPending, v1alpha1.ReasonNodePortPending, v1alpha1.ReasonWaitingForNodes,
		v1alpha1.ReasonWaitingForIgnition, v1alpha1.ReasonNotCreated:
		return true
	default:
		return false
	}
}
