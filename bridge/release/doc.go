// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package release checks that a registry has a release image and that a pull secret may read it. It
// sends one HEAD request for the image's manifest, with the token or the basic authentication that the
// registry requires (OCI Distribution Specification, "Pulling manifests"; token authentication of
// Distribution). Successful results are cached by the image and the version of the Secret. Other results
// are not cached.
package release
