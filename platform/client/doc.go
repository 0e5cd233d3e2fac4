// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package client calls the fleet API (api/openapi), with timeouts, bounded retries and
// metrics. Sentinel, adapters and sweep have no other way to the state of the fleet.
package client
