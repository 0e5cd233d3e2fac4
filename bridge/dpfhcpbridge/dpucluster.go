// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// dpuClusterKey returns the key of the DPUCluster that the bridge names.
func dpuClusterKey(bridge *v1alpha1.DPFHCPBridge) client.ObjectKey {
	return client.ObjectKey{Namespace: bridge.Spec.DPUClusterRef.Namespace, Name: bridge.Spec.DPUClusterRef.Name}
}

// kubeconfigSecretName returns the name of the Secret with the kubeconfig in the DPUCluster's namespace.
// A DPUCluster's spec.kubeconfig cannot be changed, so every bridge that serves the DPUCluster uses the
// same name.
func kubeconfigSecretName(cluster string) string { return cluster + "-hcp-kubeconfig" }

// validateDPUCluster checks that the DPUCluster exists, is ready, does not belong to another bridge, and
// can take more nodes if the hosted cluster is not created yet.
func validateDPUCluster(ctx context.Context, s *scope) step.Result {
	key := dpuClusterKey(s.bridge)

	object, err := s.getObject(ctx, s.Cache, hypershift.DPUClusterKind(), key)
	if err != nil {
		return step.Fail(err)
	}

	if object == nil {
		return step.Wait(resyncInterval, v1alpha1.ReasonNotFound, fmt.Sprintf("DPUCluster %s does not exist: create it", key))
	}

	s.dpuCluster = hypershift.DecodeDPUCluster(object)

	if s.dpuCluster.Type == hypershift.TypeKamaji {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s has type kamaji and gets its control plane from Kamaji: name a DPUCluster of type static", key))
	}

	if secret := s.dpuCluster.Kubeconfig; secret != "" && secret != kubeconfigSecretName(key.Name) {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s already uses the control plane of Secret %s, which cannot be changed: "+
				"name a DPUCluster without spec.kubeconfig", key, secret))
	}

	first, err := s.findDPUClusterOwner(ctx)
	if err != nil {
		return step.Fail(err)
	}

	if first != client.ObjectKeyFromObject(s.bridge) {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s is served by bridge %s: name another DPUCluster, or delete that bridge", key, first))
	}

	if s.dpuCluster.Phase != hypershift.PhaseReady {
		return step.Wait(resyncInterval, v1alpha1.ReasonNotReady,
			fmt.Sprintf("DPUCluster %s is in phase %s", key, formatPhase(s.dpuCluster.Phase)))
	}

	// If the hosted cluster is created already, the nodes of the DPUCluster are its own nodes.
	if !s.hasCreatedHostedCluster() && s.dpuCluster.FreeNodes() == 0 {
		return step.Wait(resyncInterval, v1alpha1.ReasonInsufficientResources,
			fmt.Sprintf("DPUCluster %s has %d of %d nodes: raise its maxNodes, or remove nodes",
				key, s.dpuCluster.Nodes, s.dpuCluster.MaxNodes))
	}

	return step.Done().WithReason(v1alpha1.ReasonValid, fmt.Sprintf("DPUCluster %s is ready", key))
}

func formatPhase(phase string) string {
	if phase == "" {
		return "(none yet)"
	}

	return phase
}

// findDPUClusterOwner returns the bridge that the DPUCluster belongs to: a bridge that has created its
// HostedCluster before a bridge that has not, and then the oldest bridge. All bridges compute the same
// result.
func (s *scope) findDPUClusterOwner(ctx context.Context) (client.ObjectKey, error) {
	return s.findOwner(ctx, indexDPUCluster, dpuClusterKey(s.bridge).String())
}

// findOwner returns the bridge that takes precedence among this bridge and all bridges with the value in
// the index.
func (s *scope) findOwner(ctx context.Context, index, value string) (client.ObjectKey, error) {
	var bridges v1alpha1.DPFHCPBridgeList
	if err := s.Client.List(ctx, &bridges, client.MatchingFields{index: value}); err != nil {
		return client.ObjectKey{}, fmt.Errorf("list bridges with %s %s: %w", index, value, err)
	}

	winner := s.bridge
	for i := range bridges.Items {
		if hasPrecedence(&bridges.Items[i], winner) {
			winner = &bridges.Items[i]
		}
	}

	return client.ObjectKeyFromObject(winner), nil
}

// hasPrecedence returns whether bridge a takes precedence over bridge b: a bridge that has created its
// HostedCluster precedes a bridge that has not, and an older bridge precedes a newer one.
func hasPrecedence(a, b *v1alpha1.DPFHCPBridge) bool {
	hasClusterA, hasClusterB := a.Status.HostedClusterRef != nil, b.Status.HostedClusterRef != nil
	if hasClusterA != hasClusterB {
		return hasClusterA
	}

	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}

	return a.UID < b.UID
}
