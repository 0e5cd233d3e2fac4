// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ids gives the machines of one HypervisorCluster ids out of its range, for providers
// whose machines are told apart by a number.
package ids
