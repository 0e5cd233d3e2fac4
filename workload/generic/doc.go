// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package generic is the platform of whatever has no platform of its own: a signed
// webhook says that there is a job, and a command of the pool does it in a machine of
// its own.
//
// A webhook is a POST of one JSON object:
//
//	id          of the job, unique within its source; required
//	source      of the job: the pool's workload.config.generic.source; required
//	name        for people
//	state       queued (default), running or completed
//	conclusion  of a completed job, in the sender's word
//	labels      that the machine must have; a job without labels goes to any
//	url         of the job, for people and for the command
//
// Fields that are not named here are errors. The webhook is signed as Standard Webhooks
// are (headers webhook-id, webhook-timestamp and webhook-signature), or as GitHub's are
// (X-Hub-Signature-256), which can be replayed.
//
// The command finds its job in HYPERFLEET_JOB_ID, _NAME, _SOURCE, _URL and _LABELS. Its
// exit code is the job's result. Nobody else is asked about jobs, so nothing repairs a
// webhook that was lost: a sender repeats it until it is answered with 2xx.
package generic
