// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform is the configuration of the platform's programs: `hyperfleet-platform api`,
// `sentinel`, `sweep`, and the broker between them. The files are strict YAML. A HYPERFLEET_*
// environment variable overrides the file, and a flag overrides both. The files of an adapter are in
// api/adapter.
package platform
