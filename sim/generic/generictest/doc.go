// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package generictest serves the simulated generic sender to tests.
package generictest
