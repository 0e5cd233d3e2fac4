// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodecert makes the credentials with which a host joins its cluster: a client
// certificate of the user system:node:NAME, which the cluster itself signs and lets act as that
// one Node (its Node authorizer and its NodeRestriction).
//
//	New: key, in memory ──► Advance: request made ─► approved ─► signed ──► kubeconfig
//
// The key is nowhere but in memory until it is at the host. Whoever has lost it asks for another.
package nodecert
