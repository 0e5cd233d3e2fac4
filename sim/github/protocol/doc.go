// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protocol holds the wire types between the simulator and its simulated runner: the
// just-in-time config in GitHub's own format, and a small private protocol under /sim/runner/
// instead of the protocol of GitHub's runner service. The package imports only the standard
// library, so that the runner stays small.
package protocol
