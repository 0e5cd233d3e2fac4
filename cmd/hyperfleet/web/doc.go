// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package web has the command `hyperfleet web`: pages that show a cluster's pools, jobs, machines,
// hypervisors, hosts and bridges, served on loopback with the user's own kubeconfig. They are
// rendered here, need nothing of the internet, and change nothing.
package web
