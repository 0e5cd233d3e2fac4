// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package forgetest has the shared helpers for tests of the forge simulators. It serves a
// simulator for one test and fails the test if the platform's contract is violated. It also runs
// simulated runner programs inside the test process, and receives webhooks.
package forgetest
