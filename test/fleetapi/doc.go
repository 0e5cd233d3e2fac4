// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleetapi runs a fleet API with a real PostgreSQL (test/postgres) for tests. Serve starts an API for
// one test, and RunWith starts one for all tests of a binary.
package fleetapi
