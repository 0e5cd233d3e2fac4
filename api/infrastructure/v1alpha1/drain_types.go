// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Condition types of machines and hosts that are Nodes of a cluster. They are set during deletion.
const (
	// ConditionNodeDrained is True if the Node is drained.
	ConditionNodeDrained = "NodeDrained"
	// ConditionNodeDeleted is True if the Node is deleted from its cluster.
	ConditionNodeDeleted = "NodeDeleted"
)

// AnnotationCordonedForUpdate is on a Node that the operator has cordoned for an update of its host and
// uncordons after the update. The operator does not uncordon a Node that somebody else has cordoned.
const AnnotationCordonedForUpdate = "infrastructure.hyperfleet.io/cordoned-for-update"

// NodeDrain defines how the Nodes of machines or hosts are drained before the machines or hosts are
// deleted.
type NodeDrain struct {
	// kubeconfigSecretRef selects the kubeconfig of the Nodes' cluster. Its user needs permission to get,
	// patch and delete Nodes, to list Pods and to evict Pods.
	KubeconfigSecretRef LocalSecretKeySelector `json:"kubeconfigSecretRef"`
	// timeout is the maximum time of a drain. After that, the machine or the host is deleted even if Pods
	// are left, and an event names them.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="drain.timeout must be a time of one second to 24 hours such as 10m"
	Timeout metav1.Duration `json:"timeout,omitempty,omitzero"`
}

// NodeDrainStatus is the state of the drain of a Node.
type NodeDrainStatus struct {
	// startedAt is the time at which the drain began.
	StartedAt metav1.Time `json:"startedAt"`
	// nodeUID is the UID of the drained Node. The Node is deleted after the machine or the host is
	// deleted.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	NodeUID string `json:"nodeUID,omitempty"`
	// endedAt is the time at which the drain ended, with or without success.
	// +optional
	EndedAt *metav1.Time `json:"endedAt,omitempty"`
	// reason is the result in one word: Drained, NoNode or DrainTimedOut.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message describes the result.
	// +optional
	Message string `json:"message,omitempty"`
}
