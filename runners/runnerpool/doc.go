// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runnerpool scales each RunnerPool to the number of machines that its jobs need.
//
//	Observed ──► TemplateReady ──► Scaling ──► (again on events and on time)
//
// Each reconcile computes the desired number from the current claims and jobs (demand.Decide).
// Events only trigger a reconcile.
package runnerpool
