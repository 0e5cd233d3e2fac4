// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package release asks a registry whether a release image is there and may be read with a
// pull secret: one HEAD of the image's manifest, with the token or basic authentication that
// the registry asks for (OCI Distribution Specification, "Pulling manifests"; Distribution's
// token authentication). Answers that say yes are remembered, by image and version of the
// Secret; all others are asked for again.
package release
