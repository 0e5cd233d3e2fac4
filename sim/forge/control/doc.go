// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control holds the types of the control API that every forge simulator has, the
// handler that serves it, and a client for it. Tools drive a simulator in another process
// through it: they queue jobs, set faults, and read state and violations. The control API
// is the simulators' own and has no counterpart at a platform.
package control
