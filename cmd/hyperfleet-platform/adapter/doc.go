// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package adapter implements the command `hyperfleet-platform adapter`, which validates the files of an
// adapter, prints its configuration, and runs it.
package adapter
