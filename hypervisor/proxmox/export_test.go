// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import "github.com/hyperfleet/hyperfleet/hypervisor"

// SnippetName is the name of a claim's file on a snippets storage, for tests that play
// the mounted storage.
func SnippetName(operatorUID, cluster, claimUID, part string) string {
	return identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}.snippetName(claimUID, part)
}

// OperatorTag is the tag of an operator on a cluster.
func OperatorTag(operatorUID, cluster string) string {
	return tagOperator + identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}.Hash()
}
