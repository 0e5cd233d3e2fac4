// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spire registers machines with a SPIRE server by the server's API (spire-api-sdk).
//
// With method join-token, a machine has two entries and a token:
//
//	spiffe://TD/spire/agent/join_token/T ◄─ alias (the server creates it with the token)
//	          spiffe://TD/vm/NS/CLAIM/UID ◄─ workload entry, of the same SPIFFE ID
//
// With method tpm, a node entry that this package creates replaces the alias. Its selector is the
// common name of the machine's device identity. The workload entry gives the identity only to the
// bootstrap service. Its selectors are the user and the path of that program.
//
// The ids of the entries that this package creates contain the operator and the claim. So the operator
// finds its entries again after a restart and never changes the entries of others. The workload entry
// is created first and deleted last. As long as a machine has any registration, it also has a workload
// entry.
//
// SPIRE's API can neither list nor delete a join token. The alias contains the token. To revoke an
// unused token, this package attests an agent with it and evicts that agent at once.
package spire
