// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package jobs implements the commands for CI jobs: `hyperfleet jobs` lists them, and `hyperfleet job ID`
// shows one job in detail. The commands read RunnerJobs, MachineClaims and RunnerLogs from the API server,
// and change nothing.
package jobs
