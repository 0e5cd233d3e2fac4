// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guides holds tests that do what the guides in docs/ say, and tests that the
// reference pages name everything there is.
package guides
