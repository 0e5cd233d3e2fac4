// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package property has properties that do not hold say why in the test's own output. gopter
// prints to the program's, where tests that run side by side mix, and what a test runner
// takes for another test's words is lost.
package property
