// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dns runs real DNS servers on loopback for tests: BIND and Knot, with zones that accept signed
// updates (RFC 2136, TSIG) and zone transfers. It also simulates the record APIs of Cloudflare and Amazon
// Route 53, and runs a server whose answers change (DNS rebinding).
package dns
