// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control holds the types of the simulator's control API and a client
// for it. Tools drive a simulator in another process through it: they queue
// jobs, set faults, and read state and violations. The control API is the
// simulator's own and has no counterpart at GitHub.
package control
