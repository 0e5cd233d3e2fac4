// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package forgesim is the command line of the forge simulators:
//
//	forgesim github   serves a simulated GitHub
//	forgesim gitlab            serves a simulated GitLab
//	forgesim gitlab-runner     is the stand-in gitlab-runner
//	forgesim buildkite         serves a simulated Buildkite
//	forgesim buildkite-agent   is the stand-in buildkite-agent
//	forgesim runner   is the stand-in runner program
//	forgesim image    lays out a runner installation
package forgesim
