// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simagent simulates buildkite-agent for one use: buildkite-agent start --acquire-job UUID.
// It accepts the flags and variables of the real agent, makes the same calls in the same order,
// prints the same lines and returns the same exit codes (as of version 3.130). It runs the job's
// command with /bin/sh and does not check out a repository.
package simagent
