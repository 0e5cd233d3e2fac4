// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package orphans finds and deletes machines, runners, cloud-init ISOs and identities that carry the
// ownership label of this operator and whose claim no longer exists.
//
// The order of the lists matters. The sweeper lists the external resources first, and the claims second,
// directly from the API server. A claim is always created before its resources, so every resource in the
// first list has its claim in the second list unless the claim was deleted.
package orphans
