// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package answers contains checks that the client of every CI platform must pass. The client limits the
// size of responses, and sends credentials only over encrypted connections or to loopback addresses.
package answers
