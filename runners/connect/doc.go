// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect turns what users wrote (references to Secrets, endpoints, scopes)
// into live connections: hypervisor.Connection per HypervisorCluster and
// workload.Provider per scope of a CI platform.
//
// Secrets are read with single gets, never listed, watched or cached by the client,
// so that the operator needs no more than `get` on the Secrets it is pointed to. A
// connection is made anew when what it was made from has changed, so rotated
// credentials are picked up without a restart.
package connect
