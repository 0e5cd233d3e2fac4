// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agents runs the CI platforms' own programs in machines: the real buildkite-agent and
// gitlab-runner, under the real bootstrap service, with the CI platforms simulated. The tests run a complete
// job for every way in which a job can end. A test fails if a simulator and the real program behave
// differently.
//
// The environment variables BUILDKITE_AGENT and GITLAB_RUNNER name the programs. If they are not set, the
// tests use the programs in PATH. `make e2e-agents` builds buildkite-agent into bin/ if its Go modules can be
// downloaded. The tests of a missing program are skipped. `make e2e` does not run these tests.
package agents
