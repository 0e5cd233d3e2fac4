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

// defaultWorkDir is what the API server fills in.
const defaultWorkDir = "/tmp/runner-work"

// Platform runs a command for each job of a source. The zero value is ready.
type Platform struct{ Webhooks }

var _ workload.Platform = Platform{}

// Traits are those of jobs that nobody else knows of.
func (Platform) Traits() workload.Traits {
	return workload.Traits{Slug: "generic", JobPrefix: "job", MachineEndsJobs: true}
}

// Runner reads a workload's settings. A template has none of them.
func (Platform) Runner(_ *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{
		Platform: v1alpha1.WorkloadGeneric, Binds: true,
		Program: guest.Runner{WorkDir: defaultWorkDir, OS: "linux", Arch: "x64"},
	}

	if load.Config == nil || load.Config.Generic == nil {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"tell whose jobs to do: workload.config.generic is missing, with the source of the jobs and the command that does them")
	}

	own := load.Config.Generic
	out.Scope.Repository = own.Source
	out.Labels = slices.Clone(own.Labels)
	out.Command = slices.Clone(own.Command)
	out.Program.WorkDir = cmp.Or(own.WorkDir, defaultWorkDir)

	switch {
	case own.Source == "":
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"tell whose jobs to do: workload.config.generic.source is empty")
	case len(own.Command) == 0 || own.Command[0] == "":
		return out, errclass.New(errclass.Configuration, ReasonCommandMissing,
			"do the jobs of %s: workload.config.generic.command is empty", own.Source)
	}

	return out, nil
}

// ReasonCommandMissing is the reason of an error of Platform.Runner.
const ReasonCommandMissing = "CommandMissing"

// Fit gives a job to the machines of its source that have all of its labels, without
// regard to case. A job without labels goes to any of them.
func (Platform) Fit(runner workload.RunnerSpec, job workload.Job) workload.Fit {
	fit := workload.Fit{Covers: runner.Scope.Repository != "" && runner.Scope.Repository == job.Repository}
	if !fit.Covers {
		return fit
	}

	for _, label := range job.Labels {
		if !slices.ContainsFunc(runner.Labels, func(have string) bool { return strings.EqualFold(have, label) }) {
			fit.Missing = append(fit.Missing, label)
		}
	}

	fit.Takes = len(fit.Missing) == 0

	return fit
}

// Open makes the provider. It needs no secrets.
func (Platform) Open(workload.Config) (workload.Provider, error) { return provider{}, nil }
