// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// node is a node of a HypervisorCluster.
type node struct{ cluster, name string }

// findNode returns the node of a claim's machine, and the zero node if the claim has no machine yet.
func findNode(claim *v1alpha1.MachineClaim) node {
	if claim.Status.VMRef == nil {
		return node{}
	}

	return node{claim.Status.VMRef.HypervisorCluster, claim.Status.VMRef.Node}
}

// findUnreachable returns the nodes of the claims' machines that have not responded for notReadyPeriod, or whose cluster has
// not been ready for that time.
func (s *scope) findUnreachable(ctx context.Context, claims []v1alpha1.MachineClaim) (map[node]bool, error) {
	responds := map[node]bool{}

	for i := range claims {
		key := findNode(&claims[i])
		if _, known := responds[key]; known || key == (node{}) {
			continue
		}

		cluster, err := s.getCluster(ctx, key.cluster)
		if err != nil {
			return nil, err
		}

		responds[key] = step.IsReady(cluster) && !isOffline(cluster, key.name)
	}

	maps.DeleteFunc(s.nodeOutages.since, func(key node, _ time.Time) bool { _, hasMachine := responds[key]; return !hasMachine })

	out := map[node]bool{}

	for key, doesRespond := range responds {
		since := s.nodeOutages.record(key, !doesRespond, s.Clock.Now())
		if since.IsZero() {
			continue
		}

		remaining := since.Add(notReadyPeriod).Sub(s.Clock.Now())
		out[key] = remaining <= 0

		if !out[key] {
			s.recheckIn = step.ChooseSooner(s.recheckIn, remaining)
		}
	}

	return out, nil
}

// isOffline reports whether the cluster's status says that the node does not respond.
func isOffline(cluster *v1alpha1.HypervisorCluster, name string) bool {
	return slices.ContainsFunc(cluster.Status.Nodes, func(n v1alpha1.HypervisorNodeStatus) bool {
		return n.Name == name && !n.Online
	})
}
