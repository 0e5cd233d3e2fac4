// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simrunner is a stand-in for gitlab-runner: its command run-single with the shell
// executor, against a simulated GitLab (package sim/gitlab) or a real one. It takes the
// options and variables of the real one, prints its lines and returns its exit codes
// (https://docs.gitlab.com/runner/commands/#gitlab-runner-run-single). Of a job it runs
// the scripts; sources, caches and artifacts it leaves alone. It is small and starts fast,
// for it runs once per simulated job; it imports the standard library only.
package simrunner
