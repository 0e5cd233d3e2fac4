// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// defaultWorkDir is the default that the API server sets.
const defaultWorkDir = "/tmp/runner-work"

// Platform runs a command for each job of a source. The zero value is ready to use.
type Platform struct{ Webhooks }

var _ workload.Platform = Platform{}

// Traits returns the traits of jobs that only the operator knows.
func (Platform) Traits() workload.Traits {
	return workload.Traits{Slug: "generic", JobPrefix: "job", NeedsMachineForJobEnd: true}
}

// ResolveRunner reads the settings of a workload. Templates have no settings for this platform.
func (Platform) ResolveRunner(_ *v1alpha1.HypervisorMachineTemplate, spec v1alpha1.Workload) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{
		Platform: v1alpha1.WorkloadGeneric, NeedsJob: true,
		Program: guest.Runner{WorkDir: defaultWorkDir, OS: "linux", Arch: "x64"},
	}

	if spec.Config == nil || spec.Config.Generic == nil {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"configure the generic workload: set source and command in workload.config.generic")
	}

	config := spec.Config.Generic
	out.Scope.Repository = config.Source
	out.Labels = slices.Clone(config.Labels)
	out.Command = slices.Clone(config.Command)
	out.Program.WorkDir = cmp.Or(config.WorkDir, defaultWorkDir)

	switch {
	case config.Source == "":
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"configure the generic workload: set workload.config.generic.source")
	case len(config.Command) == 0 || config.Command[0] == "":
		return out, errclass.New(errclass.Configuration, ReasonCommandMissing,
			"run the jobs of %s: workload.config.generic.command is empty", config.Source)
	}

	return out, nil
}

// ReasonCommandMissing is the reason of an error of Platform.ResolveRunner: the command is empty.
const ReasonCommandMissing = "CommandMissing"

// MatchJob matches a job with the machines of its source that have all of its labels. It compares
// labels case-insensitively. A job without labels matches any machine of its source.
func (Platform) MatchJob(runner workload.RunnerSpec, job workload.Job) workload.JobMatch {
	match := workload.JobMatch{InScope: runner.Scope.Repository != "" && runner.Scope.Repository == job.Repository}
	if !match.InScope {
		return match
	}

	for _, label := range job.Labels {
		if !slices.ContainsFunc(runner.Labels, func(have string) bool { return strings.EqualFold(have, label) }) {
			match.MissingLabels = append(match.MissingLabels, label)
		}
	}

	match.Matched = len(match.MissingLabels) == 0

	return match
}

// Open creates the provider. It needs no secrets.
func (Platform) Open(workload.Config) (workload.Provider, error) { return provider{}, nil }
