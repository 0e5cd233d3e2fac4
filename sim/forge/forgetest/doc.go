// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package forgetest is what the test packages of the forge simulators share: it serves a
// simulator for one test, which fails when the platform's contract is broken, runs
// stand-in programs inside the test process, and receives webhooks.
package forgetest
