// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package budgets_test

// slower is the factor by which the race detector may slow down what is measured.
const slower = 10
