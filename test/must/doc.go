// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package must ends a test at an unexpected error.
package must
