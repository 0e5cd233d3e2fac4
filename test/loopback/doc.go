// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package loopback gives tests addresses for the programs that they start, where those
// can't be given a socket. A server in the test's own process listens on port 0 instead.
package loopback
