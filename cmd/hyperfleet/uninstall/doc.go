// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package uninstall removes an installation in the order that leaves nothing behind: first
// the machines, by the operator that made them, then what they were made from, then the
// operator and its kinds. Where something does not go, it stops and says what is left; so
// the operator stays, which alone can remove it.
package uninstall
