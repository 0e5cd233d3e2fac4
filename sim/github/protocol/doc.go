// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protocol holds the wire types between the simulator and its stand-in
// runner: the JIT blob in GitHub's own layout, and a small private protocol
// under /sim/runner/ in place of GitHub's runner service. It imports nothing
// outside the standard library, so that the runner stays small.
package protocol
