// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypershifttest starts HyperShift simulators for tests.
package hypershifttest
