// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registry simulates the part of a container registry that resolves manifests. It implements
// pulls of manifests by tag and by digest from the OCI distribution specification (v1.1), and the
// token authentication that registries share
// (https://distribution.github.io/distribution/spec/auth/token/).
//
//	GET  /v2/                          200, or 401 with a challenge
//	HEAD /v2/REPOSITORY/manifests/REF  200, 401, 404; GET as well
//	GET  /auth/token                   200 with a token, 401 for a wrong password
//
// The simulator answers any other request with 501 and records a violation. A test that uses
// registrytest fails if a violation was recorded.
package registry
