// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package address answers which of MetalLB's pools has an address. It is pure.
//
// A pool's ranges are cut into CIDRs, which are what an index keeps: an address is in the
// pool if one of the 33 CIDRs around the address is among them. So no list of all pools is
// gone through.
package address
