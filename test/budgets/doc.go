// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package budgets tests that no input of a tenant uses many resources of the operator. Whatever the content
// of a single text, parsing it allocates at most 16 MiB and takes at most one second.
package budgets
