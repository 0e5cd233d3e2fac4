// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guides tests the guides in docs/ by executing their steps, and tests that the reference pages are
// complete.
package guides
