// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cloudinit creates the boot data of a machine: user data, meta data and a network configuration for
// cloud-init's NoCloud data source, and the ISO image that contains them.
//
// Render executes the user's templates and merges the operator's data into the result (document 000,
// "Cloud-Init Data Merging"). It merges parsed data and never text. Its errors name the field and the fix.
// BuildISO packs the result. The model in netdata/ writes the network configuration.
//
// The package uses no clock, no network, no files and no environment variables. The same input always gives
// the same bytes.
package cloudinit
