// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// SnippetName is the name of a claim's file on a snippets storage, for tests that play
// the mounted storage.
func SnippetName(operatorUID, cluster, claimUID, part string) string {
	return identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}.snippetName(claimUID, part)
}

// OperatorTag is the tag of an operator on a cluster.
func OperatorTag(operatorUID, cluster string) string {
	return tagOperator + identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}.Hash()
}

// Tags are the tags of a machine of the pool.
func Tags(operatorUID, cluster, pool string, extra map[string]string) string {
	return machineTags(identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}, pool, extra)
}

// NewRecord is the record of a machine.
func NewRecord(operatorUID, cluster string, id int, owner hypervisor.Owner, now time.Time) Record {
	return identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}.record(id, owner, now)
}

// Mine tells whether a machine with these notes is the owner's.
func Mine(c hypervisor.Connection, id int, owner hypervisor.Owner, notes string) bool {
	p, ok := c.(*Provider)

	return ok && p.mine(&machine{id: id, owner: owner}, vmConfig{"description": notes})
}

// Where gives the storage of a machine's disks, and its network.
func Where(config hypervisor.Config, shape hypervisor.Shape, templateStorage, net0 string) (storage, net string) {
	p := &Provider{config: config}

	return p.targetStorage(hypervisor.Template{Storage: templateStorage}, shape),
		editNet(net0, cmp.Or(shape.Bridge, config.DefaultNetwork), shape.VLAN)
}
