// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypervisor is the boundary to whatever makes machines: it says what a
// hypervisor must do for the runners area, and nothing about how.
//
// A Provider serves one HypervisorCluster. Its methods never block for longer than one
// API call: what takes time is started, and the caller is woken (Options.Wake) when it
// is worth looking again.
//
//	Reserve ──► Ensure ──► Creating ──► Prepared ──► Start ──► Running ──► Stopped ──► Delete ──► gone
//	(the caller puts the id on record)  (standby: it waits here)
//
// Start makes what is not made yet, so a machine that need not wait is only started. Ensure,
// Start and Delete are called again and again until they say that there is nothing left to
// do; each call looks first and goes as far as it can. A provider keeps nothing that it
// could not find again: what a call needs is in its arguments, which are on the claim's
// record, and on the machine, which bears its owner from the call that makes it.
//
// The error kinds decide what a caller does; see Kind. docs/guides/write-a-provider.md says
// how to write a provider, hypervisor/example is the smallest one, and
// hypervisor/conformance checks that it keeps these promises.
package hypervisor
