// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// SnippetName returns the file name of a claim's snippet, for tests that simulate the mounted storage.
func SnippetName(operatorUID, cluster, claimUID, part string) string {
	return identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}.snippetName(claimUID, part)
}

// OperatorTag returns the tag of an operator on a cluster.
func OperatorTag(operatorUID, cluster string) string {
	return tagOperator + identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}.Hash()
}

// Tags returns the tags of a machine of the pool.
func Tags(operatorUID, cluster, pool string, extra map[string]string) string {
	return buildTags(identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}, pool, extra)
}

// NewRecord returns the ownership record of a machine.
func NewRecord(operatorUID, cluster string, id int, owner hypervisor.Owner, now time.Time) Record {
	return identity{hypervisor.Identity{OperatorUID: operatorUID, Cluster: cluster}}.newRecord(id, hypervisor.MachineSpec{Owner: owner}, now)
}

// IsOwn reports whether a machine with these notes belongs to the owner.
func IsOwn(c hypervisor.Connection, id int, owner hypervisor.Owner, notes string) bool {
	p, ok := c.(*Provider)

	return ok && p.isOwn(&machine{id: id, owner: owner}, vmConfig{"description": notes})
}

// SelectStorageAndNet returns the storage of a machine's disks and the option net0.
func SelectStorageAndNet(config hypervisor.Config, shape hypervisor.Shape, templateStorage, net0 string) (storage, net string) {
	p := &Provider{config: config}

	return p.selectStorage(hypervisor.Template{Storage: templateStorage}, shape),
		editNet(net0, p.selectBridge(shape), shape.VLAN)
}
