// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package serve runs an adapter: it takes events from the broker, hands each to the
// pipeline within its time, counts what came of it, says whether the adapter is well, and
// drains when it is told to end.
package serve
