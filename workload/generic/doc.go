// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package generic implements the workload interfaces for systems without a platform package: a
// signed webhook reports a job, and a command of the pool runs the job in its own machine.
//
// A webhook is a POST of one JSON object:
//
//	id          of the job, unique within its source; required
//	source      of the job: the pool's workload.config.generic.source; required
//	name        for people
//	state       queued (default), running or completed
//	conclusion  of a completed job, as free text
//	labels      that the machine must have; a job without labels runs on any machine
//	url         of the job, for people and for the command
//
// A field that is not listed here is an error. The webhook is signed either as Standard Webhooks
// define (headers webhook-id, webhook-timestamp and webhook-signature) or as GitHub does
// (X-Hub-Signature-256). A webhook with GitHub's signature can be replayed.
//
// The command reads its job from HYPERFLEET_JOB_ID, _NAME, _SOURCE, _URL and _LABELS. Its exit code
// is the job's result. No API can be asked for jobs, so nothing restores a lost webhook: the sender
// must repeat a webhook until the response has a 2xx status.
package generic
