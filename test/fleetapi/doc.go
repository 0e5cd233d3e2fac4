// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleetapi gives tests a fleet API over a real PostgreSQL (test/postgres): one of a
// test's own with Serve, or one for all tests of a binary with With.
package fleetapi
