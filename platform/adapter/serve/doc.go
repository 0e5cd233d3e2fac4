// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package serve runs an adapter. It receives events, passes each event to the pipeline with a
// timeout, counts the results, serves health and metrics, and drains when its context ends.
package serve
