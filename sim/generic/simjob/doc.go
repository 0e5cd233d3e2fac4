// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simjob is the command that runs the jobs of the simulated generic sender. It reads
// HYPERFLEET_JOB_ID and HYPERFLEET_JOB_URL, gets the job from the sender, reports that the job has
// started, waits for the duration of the job (or runs the job's own command), and reports the
// result.
package simjob
