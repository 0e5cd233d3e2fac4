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

// dpuClusterKey is the DPUCluster that a bridge names.
func dpuClusterKey(bridge *v1alpha1.DPFHCPBridge) client.ObjectKey {
	return client.ObjectKey{Namespace: bridge.Spec.DPUClusterRef.Namespace, Name: bridge.Spec.DPUClusterRef.Name}
}

// handedOverName is the Secret with the kubeconfig in the DPUCluster's namespace. A
// DPUCluster's spec.kubeconfig can never be changed, so the name is the same for whichever
// bridge serves it.
func handedOverName(cluster string) string { return cluster + "-hcp-kubeconfig" }

// dpuClusterValid looks whether the DPUCluster is there, ready, has room, and is not
// another's.
func dpuClusterValid(ctx context.Context, s *scope) step.Result {
	key := dpuClusterKey(s.bridge)

	object, err := s.read(ctx, s.Cache, hypershift.DPUClusterKind(), key)
	if err != nil {
		return step.Fail(err)
	}

	if object == nil {
		return step.Wait(lookAgain, v1alpha1.ReasonNotFound, fmt.Sprintf("DPUCluster %s is not there: make it", key))
	}

	s.dpus = hypershift.ReadDPUCluster(object)

	if s.dpus.Type == hypershift.TypeKamaji {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s is of type kamaji and gets its control plane from there: name one of type static", key))
	}

	if by := s.dpus.Kubeconfig; by != "" && by != handedOverName(key.Name) {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s has the control plane of Secret %s already, and can't be given another: name one without", key, by))
	}

	first, err := s.firstOfDPUCluster(ctx)
	if err != nil {
		return step.Fail(err)
	}

	if first != client.ObjectKeyFromObject(s.bridge) {
		return step.Stall(v1alpha1.ReasonInUse,
			fmt.Sprintf("DPUCluster %s is served by bridge %s: name another, or remove that bridge", key, first))
	}

	if s.dpus.Phase != hypershift.PhaseReady {
		return step.Wait(lookAgain, v1alpha1.ReasonNotReady, fmt.Sprintf("DPUCluster %s is in phase %s", key, orNone(s.dpus.Phase)))
	}

	// The nodes of a cluster that is made are its own.
	if !s.made() && s.dpus.Room() == 0 {
		return step.Wait(lookAgain, v1alpha1.ReasonInsufficientResources,
			fmt.Sprintf("DPUCluster %s has %d nodes of %d: raise its maxNodes, or remove nodes", key, s.dpus.Nodes, s.dpus.MaxNodes))
	}

	return step.Done().WithReason(v1alpha1.ReasonValid, fmt.Sprintf("DPUCluster %s is ready", key))
}

func orNone(phase string) string {
	if phase == "" {
		return "none yet"
	}

	return phase
}

// firstOfDPUCluster is the bridge that the DPUCluster belongs to: one that has made its
// HostedCluster before one that has not, then the oldest. All come to the same answer.
func (s *scope) firstOfDPUCluster(ctx context.Context) (client.ObjectKey, error) {
	return s.first(ctx, indexDPUCluster, dpuClusterKey(s.bridge).String())
}

// first is the one of the bridges with a value of an index that was there before the others.
func (s *scope) first(ctx context.Context, index, value string) (client.ObjectKey, error) {
	var bridges v1alpha1.DPFHCPBridgeList
	if err := s.Client.List(ctx, &bridges, client.MatchingFields{index: value}); err != nil {
		return client.ObjectKey{}, fmt.Errorf("list bridges with %s %s: %w", index, value, err)
	}

	winner := s.bridge
	for i := range bridges.Items {
		if before(&bridges.Items[i], winner) {
			winner = &bridges.Items[i]
		}
	}

	return client.ObjectKeyFromObject(winner), nil
}

// before says whether a bridge comes before another.
func before(a, b *v1alpha1.DPFHCPBridge) bool {
	if madeA, madeB := a.Status.HostedClusterRef != nil, b.Status.HostedClusterRef != nil; madeA != madeB {
		return madeA
	}

	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}

	return a.UID < b.UID
}
