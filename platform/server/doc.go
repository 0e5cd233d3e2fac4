// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server implements the fleet API (api/openapi): resources of registered kinds, the statuses
// that adapters report, the conditions that are computed from them, the change feed, and leases.
//
//	request ─► limits, caller ─► route ─► operation ─► store (one transaction,
//	           (middleware.go)   (mux.go) (create.go, ...)  request_tx.go)
//
// A request passes these checks in this order. The first check that fails writes the response:
//
//	limits    its time and the size of its body               ServeHTTP
//	caller    a token of a trusted issuer names the caller    authenticate
//	tenant    the token or a header names the tenant          resolveTenancy
//	route     the API has an operation with this path         serveWithRecovery
//	scope     the path names registered kinds                 parseScope
//	role      the caller's roles allow the operation          authorize
//	contract  parameters and body match the OpenAPI document  validateRequest
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
