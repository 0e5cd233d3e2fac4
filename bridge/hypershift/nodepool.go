// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// Condition types and a reason of a NodePool (https://hypershift-docs.netlify.app/reference/api/,
// NodePoolStatus).
const (
	allMachinesReady = "AllMachinesReady"
	allNodesHealthy  = "AllNodesHealthy"
	asExpected       = "AsExpected"
	validPrefix      = "Valid"
)

// NodePoolProblem returns the problem of a NodePool as a reason of NodePoolReady and a message. Both are
// empty if there is no problem. For a NodePool without machines, HyperShift reports
// AllMachinesReady=False with reason AsExpected, which is no problem.
func NodePoolProblem(pool *unstructured.Unstructured) (reason, message string) {
	waiting := ""

	for _, condition := range Conditions(pool) {
		if condition.Status != metav1.ConditionFalse || condition.Reason == asExpected {
			continue
		}

		switch {
		case condition.Type == allNodesHealthy, strings.HasPrefix(condition.Type, validPrefix):
			return v1alpha1.ReasonNodesUnhealthy, "NodePool: " + condition.Type + ": " + condition.Message
		case condition.Type == allMachinesReady:
			waiting = "NodePool: " + condition.Message
		}
	}

	if waiting != "" {
		return v1alpha1.ReasonWaitingForNodes, waiting
	}

	return "", ""
}

const (
	// currentConfigAnnotation is the annotation with the version of the configuration that the workers of
	// a NodePool should have (nodepool_controller.go, nodePoolAnnotationCurrentConfigVersion).
	currentConfigAnnotation = "hypershift.openshift.io/nodePoolCurrentConfigVersion"
	userDataPrefix          = "user-data-"
)

// UserDataKey is the key of the ignition in a Secret with user data.
const UserDataKey = "value"

// UserDataSecretName returns the name of HyperShift's Secret with the user data of a NodePool's workers,
// in the control plane's namespace. It is empty until HyperShift has set the configuration's version.
// Each configuration has its own Secret.
func UserDataSecretName(pool *unstructured.Unstructured) string {
	version := pool.GetAnnotations()[currentConfigAnnotation]
	if version == "" {
		return ""
	}

	return userDataPrefix + pool.GetName() + "-" + version
}

// IsUserDataSecret returns whether a Secret with this name holds user data.
func IsUserDataSecret(name string) bool { return strings.HasPrefix(name, userDataPrefix) }
