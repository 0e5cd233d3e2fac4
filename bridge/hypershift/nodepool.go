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
