// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package migrate is the command `hyperfleet-platform migrate`, which converts files of the upstream HyperFleet project.
package migrate
