// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simagent is a stand-in for buildkite-agent in the one use that matters here:
// buildkite-agent start --acquire-job UUID. It takes the real agent's flags and variables,
// makes its calls in its order, prints its lines and ends with its exit codes (as of
// version 3.130), and runs the job's command by /bin/sh in place of a checkout.
package simagent
