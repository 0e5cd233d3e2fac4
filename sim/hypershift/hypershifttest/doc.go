// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypershifttest starts simulated HyperShifts for tests.
package hypershifttest
