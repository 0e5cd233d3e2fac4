// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package budgets_test

// slower is how many times slower the race detector may make what is measured.
const slower = 10
