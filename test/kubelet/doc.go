// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelet runs pods as processes, for tests of what is shipped to run in a cluster:
// with the container's arguments and variables, its ConfigMaps and Secrets for files, the
// token of its account, and what the names of Services lead to. Ports are free ones of
// loopback. What images hold, and what the kernel keeps from a container, it does not play.
package kubelet
