// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simjob is the command that does the jobs of the simulated generic sender. It
// reads HYPERFLEET_JOB_ID and HYPERFLEET_JOB_URL, asks the sender what there is to do,
// tells it that the job has begun, waits for as long as the job takes (or runs the job's
// own command), and tells how it went.
package simjob
