// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package adapter is the command `hyperfleet-platform adapter`: it checks an adapter's files, shows
// its configuration, and runs it.
package adapter
