// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cloudinit makes what a machine boots with: user data, meta data and a
// network configuration for cloud-init's NoCloud data source, and the ISO image
// that carries them.
//
// Render executes the user's templates, merges what the operator adds (document 000,
// "Cloud-Init Data Merging") as structure and never as text, and fails with the name
// of the thing and the fix. ISO packs the result. The network configuration is written
// with the model in netdata/. The package is pure: no clock, no network, no files, no
// environment; the same input gives the same bytes.
package cloudinit
