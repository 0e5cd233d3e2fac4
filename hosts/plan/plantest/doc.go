// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plantest has the tests that the plan of every kind of host must pass. They check that the
// hash covers exactly what is pushed, compare the plan with golden files, and run bash and
// shellcheck on each script.
package plantest
