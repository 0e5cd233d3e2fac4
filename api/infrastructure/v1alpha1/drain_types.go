// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Conditions of machines and hosts that are Nodes of a cluster, on their deletion.
const (
	// ConditionNodeDrained tells whether the Node is drained.
	ConditionNodeDrained = "NodeDrained"
	// ConditionNodeDeleted tells whether the Node is off its cluster.
	ConditionNodeDeleted = "NodeDeleted"
)

// AnnotationCordonedForUpdate is on a Node that was cordoned for an update of its host, and is to be
// uncordoned after it. One that somebody else has cordoned is left so.
const AnnotationCordonedForUpdate = "infrastructure.hyperfleet.io/cordoned-for-update"

// NodeDrain is how the Nodes of machines or hosts are drained before these go.
type NodeDrain struct {
	// kubeconfigSecretRef names the Secret with a kubeconfig of the cluster that the Nodes are
	// of. Its user gets, patches and deletes Nodes, lists Pods and evicts them.
	KubeconfigSecretRef LocalSecretKeySelector `json:"kubeconfigSecretRef"`
	// timeout is how long a drain may take. After it the machine or host goes all the same, and
	// an event says what was left on it.
	// +optional
	// +kubebuilder:default="10m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="drain.timeout must be a time of one second to 24 hours such as 10m"
	Timeout metav1.Duration `json:"timeout,omitempty,omitzero"`
}

// NodeDrainStatus is how the draining of a Node went.
type NodeDrainStatus struct {
	// startedAt is when it began.
	StartedAt metav1.Time `json:"startedAt"`
	// nodeUID is the Node that was drained, which is deleted when the machine or host is gone.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	NodeUID string `json:"nodeUID,omitempty"`
	// endedAt is when it was over, in one way or another.
	// +optional
	EndedAt *metav1.Time `json:"endedAt,omitempty"`
	// reason says in one word how it ended: Drained, NoNode, DrainTimedOut.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message says more.
	// +optional
	Message string `json:"message,omitempty"`
}
