// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command apidoc writes docs/reference/api.md from the CustomResourceDefinitions in
// deploy/crds: every field with its type, default, limits and meaning, and every rule
// with the message that its breach is answered with. Run it from the repository's root.
// The same definitions always give the same page.
package main
