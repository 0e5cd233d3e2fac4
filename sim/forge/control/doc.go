// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control holds the types of the control API that every forge simulator has, the handler
// that serves the control API, and a client. With the control API, tools control a simulator in
// another process: they queue jobs, set faults, and read the state and the violations. The control
// API belongs to the simulators. No platform has an equivalent.
package control
