// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package orphans finds what carries this operator's mark and belongs to no claim any
// more, on all sides: machines, runners, cloud-init ISOs, and identities. Each is removed.
//
// What is looked at first and what second decides: the outside is listed before the
// claims are, from the API server itself, so that whatever was made for a claim is
// never older news than the claim.
package orphans
