// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plantest has the tests that the plan of every kind of host has to pass: what it
// means that what is pushed is what is hashed, golden files, and a look at each script by
// bash and shellcheck.
package plantest
