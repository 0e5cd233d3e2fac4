// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet reconciles HostFleets: it looks at all hosts of a fleet, gives out the
// permits under which they are pushed to (hosts/rollout), and counts them.
//
//	hosts' statuses ──► drift.Decide, each ──► rollout.Decide ──► status.permits ──► hosts
//
// The permits of a fleet are in its status, and nowhere else: whoever runs the program
// next finds those that are out.
//
// Where the fleet says how many hosts it has, one at a time is made or deleted before that
// (scale.go).
package fleet
