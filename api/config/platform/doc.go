// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package platform is the configuration of the platform's programs: `hyperfleet-platform api`,
// `sentinel`, `sweep`, and the broker between them. Strict YAML; a flag wins over a
// HYPERFLEET_* variable, that over the file, that over the default. An adapter's own
// files are in api/adapter.
package platform
