// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server answers the fleet API (api/openapi): resources of registered kinds,
// statuses of adapters and the conditions that follow from them, the change feed, leases.
//
//	request ─► limits, caller ─► route ─► contract ─► operation ─► fleet ─► store (one
//	           (middleware.go)   (mux.go) (contract.go)  (operations.go)      transaction)
//
// Flat, nested and root routes differ in how they name a resource, which is a scope; all
// else is common to them. What is wrong is an *Error, which the outermost layer writes as
// a problem (RFC 9457).
//
// A transaction locks a resource before what is below it, and decides on what it has
// locked; where two meet the other way round the store repeats one of them.
//
// Tokens are checked with go-jose, which SPIFFE's libraries bring along.
package server
