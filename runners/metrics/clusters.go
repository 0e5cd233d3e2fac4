// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// reasonSetAside is that of a node that is left alone for a while, as the cluster's status has it.
const reasonSetAside = "SetAside"

// clusterDescs are the metrics of hypervisor clusters and their nodes.
type clusterDescs struct {
	machines, online, setAside, capacity, available *prometheus.Desc
}

func newClusterDescs() clusterDescs {
	node := []string{"cluster", "node"}
	amount := []string{"cluster", "node", "resource", "unit"}

	return clusterDescs{
		machines: desc("cluster_machines", "Machines of this operator on the cluster, whether or not they have a claim.", "cluster"),
		online:   desc("node_online", "1 while the node answers.", node...),
		setAside: desc(
			"node_set_aside",
			"1 while the node, or a part of it, is not used for a while after failures in a row.",
			node...),
		capacity: desc("node_capacity", "What the node has: cpu in cores, memory and storage in bytes.", amount...),
		available: desc(
			"node_available",
			"What of the node is not taken by machines that run, anybody's: cpu in cores, memory and storage in bytes.",
			amount...),
	}
}

func (d *clusterDescs) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{d.machines, d.online, d.setAside, d.capacity, d.available} {
		ch <- desc
	}
}

// collect gives the numbers in the clusters' status.
func (d *clusterDescs) collect(ch chan<- prometheus.Metric, clusters []v1alpha1.HypervisorCluster) {
	for i := range clusters {
		cluster := &clusters[i]
		gauge(ch, d.machines, cluster.Status.Machines, cluster.Name)

		for j := range cluster.Status.Nodes {
			node := &cluster.Status.Nodes[j]
			ready := meta.FindStatusCondition(node.Conditions, v1alpha1.ConditionReady)

			gauge(ch, d.online, one(node.Online), cluster.Name, node.Name)
			gauge(ch, d.setAside, one(ready != nil && ready.Reason == reasonSetAside), cluster.Name, node.Name)
			amounts(ch, d.capacity, node.Capacity, cluster.Name, node.Name)
			amounts(ch, d.available, node.Available, cluster.Name, node.Name)
		}
	}
}

func amounts(ch chan<- prometheus.Metric, desc *prometheus.Desc, of *v1alpha1.ResourceAmounts, cluster, node string) {
	if of == nil {
		return
	}

	gauge(ch, desc, of.CPU, cluster, node, "cpu", "core")
	gauge(ch, desc, of.Memory.Value(), cluster, node, "memory", "byte")
	gauge(ch, desc, of.Storage.Value(), cluster, node, "storage", "byte")
}
