// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package retry retries HTTP requests that failed because of the network or an outage of the server.
// The number of attempts is limited, and the delays use a given clock.
package retry
