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

// reconcileHostedCluster creates the HostedCluster and reverts changes to it. If somebody else deleted
// the HostedCluster, the step stalls instead of creating it again, because its data is lost and a new
// HostedCluster would hide the loss.
func reconcileHostedCluster(ctx context.Context, s *scope) step.Result {
	key := client.ObjectKeyFromObject(s.bridge)

	if namespace := hypershift.ControlPlaneNamespace(key.Namespace, key.Name); len(validation.IsDNS1123Label(namespace)) > 0 {
		return step.Stall(v1alpha1.ReasonCreationFailed, fmt.Sprintf(
			"the name of HyperShift's namespace %s would be longer than 63 characters: "+
				"create the bridge again with a shorter name", namespace))
	}

	switch {
	case s.hostedCluster == nil && s.hasCreatedHostedCluster():
		return step.Stall(v1alpha1.ReasonDeleted, fmt.Sprintf(
			"HostedCluster %s was deleted, but not by this bridge, and its data is lost: delete the bridge and create a new one", key))
	case s.hostedCluster != nil && !s.hostedCluster.GetDeletionTimestamp().IsZero():
		return step.Stall(v1alpha1.ReasonDeleted, fmt.Sprintf(
			"HostedCluster %s is being deleted, but not by this bridge: delete the bridge and create a new one", key))
	}

	address, result := s.findNodeAddress(ctx)
	if !result.IsDone() {
		return result
	}

	desired := hypershift.NewHostedCluster(s.bridge, address)

	cluster, err := s.applyObject(ctx, s.hostedCluster, desired, v1alpha1.ReasonCreationFailed)
	if err != nil {
		return step.FromError(err, resyncInterval)
	}

	if err := s.markCreated(ctx); err != nil {
		return step.Fail(err)
	}

	s.hostedCluster = cluster
	s.bridge.Status.HostedClusterRef = &v1alpha1.ObjectReference{Namespace: key.Namespace, Name: key.Name}

	return step.Done().WithReason(v1alpha1.ReasonCreated, fmt.Sprintf("HostedCluster %s exists", key))
}

// findNodeAddress returns the address of a node of the management cluster at which the control plane's
// node ports are reached. If the HostedCluster exists, its address is returned, because it cannot be
// changed. For a bridge that is exposed through a load balancer, the address is empty.
func (s *scope) findNodeAddress(ctx context.Context) (address string, result step.Result) {
	if s.bridge.Spec.ExposeThroughLoadBalancer {
		return "", step.Done()
	}

	if s.hostedCluster != nil {
		return hypershift.NodeAddress(s.hostedCluster), step.Done()
	}

	var nodes corev1.NodeList
	if err := s.Client.List(ctx, &nodes, client.MatchingFields{indexReady: "true"}); err != nil {
		return "", step.Fail(fmt.Errorf("list nodes: %w", err))
	}

	if address = selectNodeAddress(nodes.Items); address != "" {
		return address, step.Done()
	}

	return "", step.Wait(pollInterval, v1alpha1.ReasonNotCreated,
		"no node of the management cluster is ready and has an address, but node ports need the address of a node")
}

// selectNodeAddress returns the address of one of the nodes, and the empty string if none has an
// address. It prefers an external DNS name, then an external IP address, then an internal IP address,
// and among nodes with the same type of address the first node by name.
func selectNodeAddress(nodes []corev1.Node) string {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalDNS, corev1.NodeExternalIP, corev1.NodeInternalIP} {
		name, address := "", ""

		for i := range nodes {
			for _, candidate := range nodes[i].Status.Addresses {
				if kind == corev1.NodeExternalDNS && !strings.Contains(candidate.Address, ".") {
					continue // HyperShift rejects a name without a dot
				}

				if candidate.Type == kind && candidate.Address != "" && (name == "" || nodes[i].Name < name) {
					name, address = nodes[i].Name, candidate.Address
				}
			}
		}

		if address != "" {
			return address
		}
	}

	return ""
}

// isUsable returns whether a node is ready, schedulable and not being deleted.
func isUsable(node *corev1.Node) bool {
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

// reconcileNodePool creates the NodePool and reverts changes to it. A NodePool holds no data, so a
// deleted NodePool is created again.
func reconcileNodePool(ctx context.Context, s *scope) step.Result {
	key := client.ObjectKeyFromObject(s.bridge)

	image := s.bridge.Spec.OCPReleaseImage

	existing, err := s.getObject(ctx, s.Cache, hypershift.NodePoolKind(), key)
	if existing != nil && !hypershift.IsRolledOut(s.hostedCluster) {
		image = hypershift.Image(existing) // workers must not have a newer release than their control plane
	}

	if err == nil {
		_, err = s.applyObject(ctx, existing, hypershift.NewNodePool(s.bridge, image), v1alpha1.ReasonNodePoolCreationFailed)
	}

	if err != nil {
		result := step.FromError(err, resyncInterval)

		return result.WithCondition(v1alpha1.ConditionNodePoolReady, metav1.ConditionFalse, result.Reason(), result.Message())
	}

	s.bridge.Status.NodePoolRef = &v1alpha1.ObjectReference{Namespace: key.Namespace, Name: key.Name}

	return step.Done()
}

// checkNodePool reports the state of the NodePool. The NodePool has no machines, because the workers are
// DPUs that join without it. DPF counts the DPUs.
func checkNodePool(ctx context.Context, s *scope) step.Result {
	pool, err := s.getObject(ctx, s.Cache, hypershift.NodePoolKind(), client.ObjectKeyFromObject(s.bridge))
	if err != nil {
		return step.Fail(err)
	}

	if pool == nil {
		return step.Wait(pollInterval, v1alpha1.ReasonWaitingForNodes, "the NodePool is not in the cache yet")
	}

	if reason, message := hypershift.NodePoolProblem(pool); reason != "" {
		return step.Wait(resyncInterval, reason, message)
	}

	return step.Done().WithReason(v1alpha1.ReasonNodesReady, fmt.Sprintf("%d DPUs have joined", s.dpuCluster.Nodes))
}

// deleteHostedCluster deletes the HostedCluster and waits until HyperShift has deleted the control
// plane.
func deleteHostedCluster(ctx context.Context, s *scope) step.Result {
	return s.deleteAndWait(ctx, hypershift.HostedClusterKind(), client.ObjectKeyFromObject(s.bridge))
}

// deleteNodePool deletes the NodePool and waits until it is gone. HyperShift has usually deleted it by
// then.
func deleteNodePool(ctx context.Context, s *scope) step.Result {
	return s.deleteAndWait(ctx, hypershift.NodePoolKind(), client.ObjectKeyFromObject(s.bridge))
}
