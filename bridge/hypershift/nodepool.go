// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// Conditions and a reason of a NodePool
// (https://hypershift-docs.netlify.app/reference/api/, NodePoolStatus).
const (
	allMachinesReady = "AllMachinesReady"
	allNodesHealthy  = "AllNodesHealthy"
	asExpected       = "AsExpected"
	valid            = "Valid"
)

// NodesTrouble is what is wrong with a NodePool, as a reason of NodePoolReady and a message;
// both empty if nothing is. Of a pool of no machines HyperShift says that not all are
// ready, as expected.
func NodesTrouble(pool *unstructured.Unstructured) (reason, message string) {
	waiting := ""

	for _, condition := range Conditions(pool) {
		if condition.Status != metav1.ConditionFalse || condition.Reason == asExpected {
			continue
		}

		switch {
		case condition.Type == allNodesHealthy, strings.HasPrefix(condition.Type, valid):
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
	// currentConfig annotates a NodePool with what its workers are to be configured as
	// (nodepool_controller.go, nodePoolAnnotationCurrentConfigVersion).
	currentConfig  = "hypershift.openshift.io/nodePoolCurrentConfigVersion"
	userDataPrefix = "user-data-"
)

// UserDataKey is the key of the ignition in a Secret with user data.
const UserDataKey = "value"

// UserData is the name of HyperShift's Secret with the user data of a NodePool's workers, in
// the control plane's namespace; empty until there is one. Another configuration has another.
func UserData(pool *unstructured.Unstructured) string {
	version := pool.GetAnnotations()[currentConfig]
	if version == "" {
		return ""
	}

	return userDataPrefix + pool.GetName() + "-" + version
}

// IsUserData says whether a Secret of a control plane's namespace may be one with user data.
func IsUserData(name string) bool { return strings.HasPrefix(name, userDataPrefix) }
