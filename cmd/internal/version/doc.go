// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version is the command `hyperfleet version`: what was built, from which
// commit, with which Go.
package version
