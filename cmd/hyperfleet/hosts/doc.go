// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts has the commands for fleets of long-lived hosts: `hyperfleet hosts diff`
// tells what would be pushed where, `push` has one host pushed to now, and `pause` and
// `resume` hold a fleet back and let it go on.
package hosts
