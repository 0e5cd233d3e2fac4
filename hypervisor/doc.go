// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypervisor defines the interface between the runners area and the hypervisors.
// It defines what a hypervisor must do. Its subpackages define how.
//
// A Provider serves one HypervisorCluster. A method never blocks for longer than one API
// call. It starts a long operation and returns, and the provider calls Options.Wake when
// the caller should call the method again.
//
//	Reserve ──► Ensure ──► Creating ──► Prepared ──► Start ──► Running ──► Stopped ──► Delete ──► gone
//	(the caller records the id)         (a standby machine waits here)
//
// Start also creates a machine that does not exist yet, so the caller calls Ensure only for
// a standby machine. The caller calls Ensure, Start and Delete repeatedly until they report
// that no work is left. Each call first reads the current state and then does as much as it
// can without waiting. A provider keeps no state that it cannot find again. A call finds
// what it needs in its arguments, which the claim's status records, and on the machine,
// which carries its owner from the call that creates it.
//
// The kind of an error decides what the caller does; see Kind.
// docs/guides/write-a-provider.md explains how to write a provider. Package
// hypervisor/example is the smallest provider. Package hypervisor/conformance checks that a
// provider behaves as described here.
package hypervisor
