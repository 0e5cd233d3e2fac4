// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runnerpool keeps each RunnerPool at the number of machines that its jobs ask
// for.
//
//	TemplateReady ──► Scaled ──► (again on every event, and when time alone changes it)
//
// What is wanted is recomputed from what is there on every pass (demand.Desired);
// events only bring the pass about.
package runnerpool
