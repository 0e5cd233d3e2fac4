// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spire makes machines known to a SPIRE server, by its API (spire-api-sdk).
//
// With method join-token a machine is two entries and a token:
//
//	spiffe://TD/spire/agent/join_token/T ◄─ alias (made by the server with the token)
//	          spiffe://TD/vm/NS/CLAIM/UID ◄─ workload entry, of the same SPIFFE ID
//
// With method tpm the alias is a node entry of ours, whose selector is the common name of the
// machine's device identity. The workload entry gives the identity to the bootstrap service
// alone: its selectors are the user and the path of that program.
//
// Our entries have ids of our own, which hold the operator and the claim: what is not ours is
// never touched, and what is ours is found again by whoever has forgotten it. The workload
// entry is made first and removed last, so that it stands for all the rest.
//
// A join token can be neither listed nor removed by SPIRE's API. The alias names it, though:
// one that was not used is used up, for an agent that is evicted at once.
package spire
