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
	// ReasonNoPlatform means that no API can be asked for runners and jobs.
	ReasonNoPlatform = "NoPlatform"
	// ReasonJobMissing means that a runner was requested without a job.
	ReasonJobMissing = "JobMissing"
)

// Environment variables of the command.
const (
	EnvJobID     = "HYPERFLEET_JOB_ID"
	EnvJobName   = "HYPERFLEET_JOB_NAME"
	EnvJobSource = "HYPERFLEET_JOB_SOURCE"
	EnvJobURL    = "HYPERFLEET_JOB_URL"
	// EnvJobLabels contains the job's labels, separated by commas.
	EnvJobLabels = "HYPERFLEET_JOB_LABELS"
)

// labelSeparator separates labels. ParseJob rejects labels that contain it.
const labelSeparator = ","

// provider implements workload.Provider without calls and without state.
type provider struct{}

func newNoPlatformError(message string) error {
	return &workload.Error{Kind: workload.NotFound, Reason: ReasonNoPlatform, Message: message}
}

// Validate does nothing and returns nil.
func (provider) Validate(context.Context) error { return nil }

// IssueCredential returns the environment of the job's command. It contains no secret, so it can be
// issued repeatedly for the same job.
func (provider) IssueCredential(_ context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	if req.Job == nil || req.Job.ID == "" {
		return workload.Credential{}, &workload.Error{
			Kind: workload.Rejected, Reason: ReasonJobMissing,
			Message: "create runner " + req.Name + ": the request names no job, and a generic machine runs one job: " +
				"remove minReplicas and warm machines from the pool",
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

// FindRunner always returns an error of kind NotFound, because only the machine knows its command.
func (provider) FindRunner(_ context.Context, name string, _ time.Duration) (workload.Runner, error) {
	return workload.Runner{}, newNoPlatformError("find runner " + name + ": a generic workload has no API that lists runners")
}

// ListRunners returns no runners.
func (provider) ListRunners(context.Context, string) ([]workload.Runner, error) { return nil, nil }

// Deregister does nothing and returns nil.
func (provider) Deregister(context.Context, string) error { return nil }

// GetJob always returns an error of kind NotFound. The RunnerJob and the machine's reports are the
// only sources of a job's state.
func (provider) GetJob(_ context.Context, source, id string) (workload.Job, error) {
	return workload.Job{}, newNoPlatformError("get job " + id + " of " + source + ": a generic workload has no API that lists jobs")
}
