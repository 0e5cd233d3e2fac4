// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package random runs the steps of package conformance in random sequences. It is a package of its
// own, because programs that link package conformance do not link the library for properties.
package random
