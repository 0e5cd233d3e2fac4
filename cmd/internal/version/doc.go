// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package version has the version, the commit and the Go version of this executable.
package version
