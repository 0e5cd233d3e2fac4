// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package forgesim is the command line of the forge simulators:
//
//	forgesim github   serves a simulated GitHub
//	forgesim gitlab            serves a simulated GitLab
//	forgesim gitlab-runner     is the stand-in gitlab-runner
//	forgesim buildkite         serves a simulated Buildkite
//	forgesim buildkite-agent   is the stand-in buildkite-agent
//	forgesim forgejo           serves a simulated Forgejo
//	forgesim forgejo-runner    is the stand-in forgejo-runner
//	forgesim gitea             serves a simulated Gitea
//	forgesim act_runner        is the stand-in act_runner
//	forgesim runner   is the stand-in runner program
//	forgesim image    lays out a runner installation
package forgesim
