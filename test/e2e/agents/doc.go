// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agents runs the CI platforms' own programs in machines: the real buildkite-agent
// and gitlab-runner, under the real bootstrap service, beside the simulators, with a whole
// job in every ending. What a simulator believes that the real program does not do, or the
// other way round, fails a test here.
//
// BUILDKITE_AGENT and GITLAB_RUNNER name the programs; without them those in PATH are used,
// and `make e2e-agents` builds a buildkite-agent into bin/ where its Go modules are to be
// had. A program that is not there is skipped. The tests are no part of `make e2e`.
package agents
