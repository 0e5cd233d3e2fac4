// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version tells what was built, from which commit, with which Go.
package version
