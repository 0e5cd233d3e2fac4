// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package forgesim is the command line of the forge simulators:
//
//	forgesim github            serves a simulated GitHub
//	forgesim runner            runs the simulated GitHub runner
//	forgesim gitlab            serves a simulated GitLab
//	forgesim gitlab-runner     runs the simulated gitlab-runner
//	forgesim buildkite         serves a simulated Buildkite
//	forgesim buildkite-agent   runs the simulated buildkite-agent
//	forgesim forgejo           serves a simulated Forgejo
//	forgesim forgejo-runner    runs the simulated forgejo-runner
//	forgesim gitea             serves a simulated Gitea
//	forgesim act_runner        runs the simulated act_runner
//	forgesim generic           serves a simulated sender of jobs
//	forgesim generic-job       runs one job of the simulated sender
//	forgesim image             writes an installation of the simulated runners to a folder
package forgesim
