// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simrunner simulates gitlab-runner: its command run-single with the shell executor,
// against a simulated GitLab (package sim/gitlab) or a real GitLab. It accepts the options and
// variables of the real program, prints its lines and returns its exit codes
// (https://docs.gitlab.com/runner/commands/#gitlab-runner-run-single). It runs the scripts of a
// job, and ignores sources, caches and artifacts. The program is small and starts fast, because it
// runs once per simulated job. It imports only the standard library.
package simrunner
