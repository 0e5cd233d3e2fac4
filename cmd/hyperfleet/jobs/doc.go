// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package jobs has the commands that tell what became of CI jobs: `hyperfleet jobs`
// lists them, and `hyperfleet job ID` explains one. They read RunnerJobs, MachineClaims
// and kept logs from the API server, and change nothing.
package jobs
