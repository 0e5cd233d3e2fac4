// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet reconciles HostFleets. It reads all hosts of a fleet, grants the permits under
// which the hosts are pushed to (hosts/rollout), and counts the hosts by state.
//
//	hosts' statuses ──► drift.Decide, each ──► rollout.Decide ──► status.permits ──► hosts
//
// The permits of a fleet are kept only in its status, so a new leader finds the permits in flight.
//
// If the fleet has spec.replicas, each reconcile first creates or deletes at most one host
// (scale.go).
package fleet
