// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"context"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Reasons of errors, for conditions and events.
const (
	// ReasonNoPlatform: there is nobody to ask about runners and jobs.
	ReasonNoPlatform = "NoPlatform"
	// ReasonJobMissing: a runner was asked for without the job that it is for.
	ReasonJobMissing = "JobMissing"
)

// Variables of the command's environment.
const (
	EnvJobID     = "HYPERFLEET_JOB_ID"
	EnvJobName   = "HYPERFLEET_JOB_NAME"
	EnvJobSource = "HYPERFLEET_JOB_SOURCE"
	EnvJobURL    = "HYPERFLEET_JOB_URL"
	// EnvJobLabels has the job's labels with commas between them.
	EnvJobLabels = "HYPERFLEET_JOB_LABELS"
)

// labelSeparator is in no label.
const labelSeparator = ","

// provider answers for a platform that there is not: it makes no call and holds nothing.
type provider struct{}

func noPlatform(message string) error {
	return &workload.Error{Kind: workload.NotFound, Reason: ReasonNoPlatform, Message: message}
}

// Validate has nobody to ask.
func (provider) Validate(context.Context) error { return nil }

// Issue gives the environment of the job's command. It holds no secret, so the same job
// may be asked for again and again.
func (provider) Issue(_ context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	if req.Job == nil || req.Job.ID == "" {
		return workload.Credential{}, &workload.Error{
			Kind: workload.Rejected, Reason: ReasonJobMissing,
			Message: "make runner " + req.Name + ": a generic machine does one job, and none was named: " +
				"set no minReplicas and no warm machines on a pool of this kind",
		}
	}

	return workload.Credential{JobID: req.Job.ID, Env: map[string]string{
		EnvJobID:     req.Job.ID,
		EnvJobName:   req.Job.Name,
		EnvJobSource: req.Job.Repository,
		EnvJobURL:    req.Job.URL,
		EnvJobLabels: strings.Join(req.Job.Labels, labelSeparator),
	}}, nil
}

// Find finds none: only the machine knows of its command.
func (provider) Find(_ context.Context, name string, _ time.Duration) (workload.Runner, error) {
	return workload.Runner{}, noPlatform("find runner " + name + ": only its machine knows of it")
}

// Runners are none.
func (provider) Runners(context.Context, string) ([]workload.Runner, error) { return nil, nil }

// Deregister has nothing to remove.
func (provider) Deregister(context.Context, string) error { return nil }

// Job has nobody to ask: the ledger and the machine's reports are all there is.
func (provider) Job(_ context.Context, source, id string) (workload.Job, error) {
	return workload.Job{}, noPlatform("ask for job " + id + " of " + source + ": what its webhooks said is all that is known")
}
