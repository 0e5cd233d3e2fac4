// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package timing waits for conditions in tests, and has a clock for code that must not wait.
package timing
