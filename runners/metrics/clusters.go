// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// reasonExcluded is the reason of an excluded node's condition Ready in the cluster's status.
const reasonExcluded = "Excluded"

// clusterDescs holds the descriptions of the metrics of hypervisor clusters and their nodes.
type clusterDescs struct {
	machines, online, excluded, capacity, available *prometheus.Desc
}

func newClusterDescs() clusterDescs {
	node := []string{"cluster", "node"}
	amount := []string{"cluster", "node", "resource", "unit"}

	return clusterDescs{
		machines: newDesc("cluster_machines", "Machines that this operator owns on the cluster, with or without a claim.", "cluster"),
		online:   newDesc("node_online", "1 while the node is online.", node...),
		excluded: newDesc(
			"node_excluded",
			"1 while the node, or a part of it, is excluded for a while after failures in a row.",
			node...),
		capacity: newDesc("node_capacity", "Capacity of the node: cpu in cores, memory and storage in bytes.", amount...),
		available: newDesc(
			"node_available",
			"Capacity of the node that no running machine of any owner uses: cpu in cores, memory and storage in bytes.",
			amount...),
	}
}

func (d *clusterDescs) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{d.machines, d.online, d.excluded, d.capacity, d.available} {
		ch <- desc
	}
}

// collect sends the numbers in the clusters' status.
func (d *clusterDescs) collect(ch chan<- prometheus.Metric, clusters []v1alpha1.HypervisorCluster) {
	for i := range clusters {
		cluster := &clusters[i]
		sendGauge(ch, d.machines, cluster.Status.Machines, cluster.Name)

		for j := range cluster.Status.Nodes {
			node := &cluster.Status.Nodes[j]
			ready := meta.FindStatusCondition(node.Conditions, v1alpha1.ConditionReady)
			isExcluded := ready != nil && v1alpha1.CurrentReason(ready.Reason) == reasonExcluded

			sendGauge(ch, d.online, boolToInt(node.Online), cluster.Name, node.Name)
			sendGauge(ch, d.excluded, boolToInt(isExcluded), cluster.Name, node.Name)
			sendAmounts(ch, d.capacity, node.Capacity, cluster.Name, node.Name)
			sendAmounts(ch, d.available, node.Available, cluster.Name, node.Name)
		}
	}
}

func sendAmounts(ch chan<- prometheus.Metric, desc *prometheus.Desc, resources *v1alpha1.ResourceAmounts, cluster, node string) {
	if resources == nil {
		return
	}

	sendGauge(ch, desc, resources.CPU, cluster, node, "cpu", "core")
	sendGauge(ch, desc, resources.Memory.Value(), cluster, node, "memory", "byte")
	sendGauge(ch, desc, resources.Storage.Value(), cluster, node, "storage", "byte")
}
