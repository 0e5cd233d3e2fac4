// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registry plays a container registry as far as looking up manifests goes: the OCI
// distribution specification (v1.1, pull: manifests by tag and digest) with the token
// authentication that registries share (https://distribution.github.io/distribution/spec/auth/token/).
//
//	GET  /v2/                          200, or 401 with a challenge
//	HEAD /v2/REPOSITORY/manifests/REF  200, 401, 404; GET as well
//	GET  /auth/token                   200 with a token, 401 for a wrong password
//
// What it does not know is answered with 501 and kept as a violation, which fails a test
// (registrytest).
package registry
