// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package property tries properties with gopter, in one way for all tests: what does not
// hold says why in the test's own output, with the smallest input that shows it. (gopter by
// itself prints to the program's output, where tests that run side by side mix.)
//
// It also knows the two tiers of tests. `make test` tries a whole life of a machine a few
// times; `make soak` sets HYPERFLEETTEST_SOAK, which tries it as often as the property asks for,
// and runs the tests that call Soak.
package property
