// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ocmtest starts work agent simulators for tests.
package ocmtest
