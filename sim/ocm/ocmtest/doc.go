// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ocmtest starts simulated work agents for tests.
package ocmtest
