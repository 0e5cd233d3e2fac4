// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect creates the connections that users configure by references to Secrets,
// endpoints and scopes: one hypervisor.Connection per HypervisorCluster, and one
// workload.Provider per scope of a CI platform.
//
// The package reads each Secret with a single get. It never lists, watches or caches Secrets, so
// that the operator needs only the permission `get` on the Secrets that users reference. If the
// configuration or a Secret of a connection changes, the package replaces the connection, so that
// rotated credentials take effect without a restart.
package connect
