// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package client calls the fleet API (api/openapi), and sends the calls of task files (api_call), with timeouts, bounded
// retries and metrics. It is the only way in which Sentinel, adapters and sweep access the state of the fleet.
package client
