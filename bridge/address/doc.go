// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package address finds the IPAddressPool of MetalLB that contains an address. All functions are pure.
//
// The ranges of a pool are split into CIDRs, which are the values of an index. An IPv4 address is in a
// pool if one of the 33 CIDRs that contain the address (129 for IPv6) is a value of the pool in the
// index. A lookup therefore does not list all pools.
package address
