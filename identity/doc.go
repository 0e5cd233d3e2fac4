// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity is the boundary to whoever attests machines: what a SPIFFE identity
// provider must do so that a machine can prove which claim it is. identity/spire does it
// with a SPIRE server.
//
// A machine's identity is spiffe://TRUST-DOMAIN/vm/NAMESPACE/CLAIM/UID. Namespace and claim
// group machines for policies of whoever relies on the identity; the UID keeps a claim's
// machine apart from that of an earlier claim of the same name.
package identity
