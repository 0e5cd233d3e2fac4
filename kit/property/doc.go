// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package property checks properties with gopter in the same way for all tests. If a property does
// not hold, the test's own output contains the reason and the smallest input that was found.
// (gopter itself prints to standard output, where the output of parallel tests is mixed.)
//
// The package also implements the two tiers of tests. `make test` checks properties of a whole
// machine lifecycle with a few inputs. `make soak` sets HYPERFLEETTEST_SOAK, checks these
// properties with all inputs, and runs the tests that call Soak.
package property
