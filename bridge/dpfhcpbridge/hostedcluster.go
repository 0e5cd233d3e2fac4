// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// hostedClusterMade makes the HostedCluster, and fixes what has been changed of it. One
// that was deleted by somebody else is not made again: its data is gone, and a new one would
// hide that.
func hostedClusterMade(ctx context.Context, s *scope) step.Result {
	key := client.ObjectKeyFromObject(s.bridge)

	if namespace := hypershift.ControlPlaneNamespace(key.Namespace, key.Name); len(validation.IsDNS1123Label(namespace)) > 0 {
		return step.Stall(v1alpha1.ReasonCreationFailed, fmt.Sprintf(
			"HyperShift's namespace %s would have more than 63 characters: make the bridge with a shorter name", namespace))
	}

	switch {
	case s.cluster == nil && s.made():
		return step.Stall(v1alpha1.ReasonDeleted, fmt.Sprintf(
			"HostedCluster %s was deleted, though not by this bridge, and its data with it: delete the bridge, and make a new one", key))
	case s.cluster != nil && !s.cluster.GetDeletionTimestamp().IsZero():
		return step.Stall(v1alpha1.ReasonDeleted, fmt.Sprintf(
			"HostedCluster %s is being deleted, though not by this bridge: delete the bridge, and make a new one", key))
	}

	address, result := s.nodeAddress(ctx)
	if !result.IsDone() {
		return result
	}

	cluster, err := s.ensure(ctx, s.cluster, hypershift.HostedCluster(s.bridge, address), v1alpha1.ReasonCreationFailed)
	if err != nil {
		return step.ForError(err, lookAgain)
	}

	s.cluster = cluster
	s.bridge.Status.HostedClusterRef = &v1alpha1.ObjectReference{Namespace: key.Namespace, Name: key.Name}

	return step.Done().WithReason(v1alpha1.ReasonCreated, fmt.Sprintf("HostedCluster %s is there", key))
}

// nodeAddress is the address of a node of the management cluster that the control plane is
// reached at on nodes' ports. It can't be changed of a HostedCluster that is there.
func (s *scope) nodeAddress(ctx context.Context) (string, step.Result) {
	if s.bridge.Spec.ExposeThroughLoadBalancer {
		return "", step.Done()
	}

	if s.cluster != nil {
		return hypershift.NodeAddress(s.cluster), step.Done()
	}

	var nodes corev1.NodeList
	if err := s.Client.List(ctx, &nodes, client.MatchingFields{indexReady: "true"}); err != nil {
		return "", step.Fail(fmt.Errorf("list nodes: %w", err))
	}

	if address := bestAddress(nodes.Items); address != "" {
		return address, step.Done()
	}

	return "", step.Wait(lookSoon, v1alpha1.ReasonNotCreated,
		"no node of the management cluster is ready and has an address, and the control plane would be reached at one")
}

// bestAddress is the address of one of the nodes: a name that leads there from outside
// before an address from outside before one from inside, and the first node by name.
func bestAddress(nodes []corev1.Node) string {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalDNS, corev1.NodeExternalIP, corev1.NodeInternalIP} {
		name, address := "", ""

		for i := range nodes {
			for _, at := range nodes[i].Status.Addresses {
				if kind == corev1.NodeExternalDNS && !strings.Contains(at.Address, ".") {
					continue // HyperShift takes no name of one word
				}

				if at.Type == kind && at.Address != "" && (name == "" || nodes[i].Name < name) {
					name, address = nodes[i].Name, at.Address
				}
			}
		}

		if address != "" {
			return address
		}
	}

	return ""
}

// usable says whether a node is ready and takes work.
func usable(node *corev1.Node) bool {
	if node.Spec.Unschedulable || !node.DeletionTimestamp.IsZero() {
		return false
	}

	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}

	return false
}

// nodePoolMade makes the NodePool, and fixes what has been changed of it. It holds no data:
// one that was deleted is made again.
func nodePoolMade(ctx context.Context, s *scope) step.Result {
	key := client.ObjectKeyFromObject(s.bridge)

	image := s.bridge.Spec.OCPReleaseImage

	have, err := s.read(ctx, s.Cache, hypershift.NodePoolKind(), key)
	if have != nil && !hypershift.RolledOut(s.cluster) {
		image = hypershift.Image(have) // workers may not run ahead of their control plane
	}

	if err == nil {
		_, err = s.ensure(ctx, have, hypershift.NodePool(s.bridge, image), v1alpha1.ReasonNodePoolCreationFailed)
	}

	if err != nil {
		result := step.ForError(err, lookAgain)

		return result.Also(v1alpha1.ConditionNodePoolReady, metav1.ConditionFalse, result.Reason(), result.Message())
	}

	s.bridge.Status.NodePoolRef = &v1alpha1.ObjectReference{Namespace: key.Namespace, Name: key.Name}

	return step.Done()
}

// nodePoolReady reports on the NodePool. It has no machines of its own: the workers are DPUs
// that join by themselves, and DPF counts them.
func nodePoolReady(ctx context.Context, s *scope) step.Result {
	pool, err := s.read(ctx, s.Cache, hypershift.NodePoolKind(), client.ObjectKeyFromObject(s.bridge))
	if err != nil {
		return step.Fail(err)
	}

	if pool == nil {
		return step.Wait(lookSoon, v1alpha1.ReasonWaitingForNodes, "the NodePool is not in sight yet")
	}

	if reason, message := hypershift.NodesTrouble(pool); reason != "" {
		return step.Wait(lookAgain, reason, message)
	}

	return step.Done().WithReason(v1alpha1.ReasonNodesReady, fmt.Sprintf("%d DPUs have joined", s.dpus.Nodes))
}
