// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keep keeps the Secrets that objects need to give something back, for example a rented server, until they have
// given it back. Without it, a namespace that is being deleted loses its Secrets before its other objects.
package keep
