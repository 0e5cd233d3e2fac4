// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts implements the commands for fleets of long-lived hosts. `hyperfleet hosts diff` shows what
// the operator would push to each host, `push` makes the operator push to one host now, and `pause` and
// `resume` pause and resume a fleet.
package hosts
