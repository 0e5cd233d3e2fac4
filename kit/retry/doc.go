// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package retry repeats HTTP calls that the network or a server's outage kept from an
// answer, a bounded number of times, and waits by a given clock.
package retry
