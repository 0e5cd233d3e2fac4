// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity defines the interface to a SPIFFE identity provider that attests machines. With its
// identity, a machine proves which MachineClaim it belongs to. Package identity/spire implements the
// interface with a SPIRE server.
//
// The SPIFFE ID of a machine is spiffe://TRUST-DOMAIN/vm/NAMESPACE/CLAIM/UID. Policies of relying
// parties can match the namespace and the claim. The UID distinguishes the machine from the machine
// of an earlier claim with the same name.
package identity
