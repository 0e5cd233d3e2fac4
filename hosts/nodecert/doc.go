// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodecert issues the credential with which a host joins its cluster: a client certificate
// for the user system:node:NAME. The cluster itself signs the certificate, and its Node authorizer
// and NodeRestriction limit the user to that one Node.
//
//	New: key, in memory ──► Advance: request created ─► approved ─► signed ──► kubeconfig
//
// The private key exists only in memory until it is on the host. If it is lost before that, the
// operator creates another key.
package nodecert
