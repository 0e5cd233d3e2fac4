// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leak holds that an operator that was stopped leaves no goroutine behind. It is
// a test binary of its own: others' goroutines would be taken for the operator's.
package leak
