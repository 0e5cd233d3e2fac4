// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drain drains a Node of another cluster. It cordons the Node and evicts its pods. A
// PodDisruptionBudget can delay the eviction of a pod. A call does what is possible now, reports
// the remaining pods, and does not wait. A [Drainer] drains a Node over several reconciles of a
// deletion. Its timeout counts from the start time that the object's status records. A Node can
// also be drained temporarily: [Cluster.Uncordon] returns the Node to service, unless somebody else
// had cordoned it.
//
// As with kubectl drain, pods of DaemonSets, mirror pods, and pods that have finished stay on the
// Node. Unlike kubectl drain, this package also evicts pods without a controller and pods with
// emptyDir volumes, because they cannot outlive the machine.
package drain
