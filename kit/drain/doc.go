// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drain takes the work off a Node of another cluster: it cordons the Node and evicts its
// pods, which PodDisruptionBudgets may refuse for a while. A call does what can be done now, and
// says what is left: nothing waits. An [Order] is a drain over the passes of a deletion, bounded
// by a time that counts from what is on record. A Node may also be drained for a while: it is put in
// service again by [Cluster.Return], unless somebody else had cordoned it.
//
// As with kubectl drain, pods of DaemonSets and mirror pods stay, and so do those that are
// over. Unlike it, pods without a controller and with emptyDir volumes are evicted: the machine
// goes, and they with it.
package drain
