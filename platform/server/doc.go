// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server implements the fleet API (api/openapi): resources of registered kinds, the statuses
// that adapters report, the conditions that are computed from them, the change feed, and leases.
//
//	request ─► limits, caller ─► route ─► contract ─► operation ─► store (one transaction,
//	           (middleware.go)   (mux.go) (contract.go) (create.go, ...)   request_tx.go)
//
// Flat, nested and root routes differ only in how they name a resource, which is the scope. Everything
// else is the same for all of them. Errors are *Error values. The outermost layer writes them as
// problems (RFC 9457).
//
// A transaction locks a resource before the resources below it, and only decides on the state of
// locked resources. If two transactions lock in opposite order, the store repeats one of them.
//
// Tokens are verified with go-jose, which is already a dependency of SPIFFE's libraries.
package server
