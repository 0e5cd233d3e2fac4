// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt tests runner pools on KubeVirt: the whole way of a job, from its
// webhook to the machine's end, with the bootstrap service as a process of its own.
package kubevirt
