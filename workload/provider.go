// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Provider calls a CI platform for one scope. It is safe for concurrent use.
type Provider interface {
	// Validate checks that the credentials have the required permissions and that the scope and the
	// runner group exist. An error of kind Rejected names the fix.
	Validate(ctx context.Context) error

	// IssueCredential creates the credential of one runner. An offline runner of the same name is
	// left over from an earlier attempt and is replaced. If a runner of that name is online or
	// busy, the error has kind Conflict.
	IssueCredential(ctx context.Context, req RunnerRequest) (Credential, error)

	// FindRunner returns the runner of that name. It reads a runner list that all callers share and
	// that is at most maxAge old. If no runner has the name, the error has kind NotFound.
	FindRunner(ctx context.Context, name string, maxAge time.Duration) (Runner, error)

	// ListRunners returns the scope's runners whose names begin with prefix.
	ListRunners(ctx context.Context, prefix string) ([]Runner, error)

	// Deregister removes the runner at the platform. An error of kind RunnerBusy means that the
	// runner runs a job and was not removed. The caller must then not delete the runner's machine.
	// A runner that does not exist is no error.
	Deregister(ctx context.Context, id string) error

	// GetJob returns the platform's current state of a job. Callers use it when webhooks were lost.
	GetJob(ctx context.Context, repository, id string) (Job, error)
}

// Poller is a Provider that can list the jobs of its scope, for jobs whose webhook was lost or
// never sent.
type Poller interface {
	// ListJobs returns the queued and the running jobs. If the platform has no job
	// list for the whole scope, ListJobs lists the jobs of repositories, which are named as in
	// RunnerJobs. If no repository is left to list, the error is NewRepositoriesMissingError.
	//
	// Jobs that are returned together with an error are valid. The error then concerns the jobs
	// that could not be listed. A job that is not in the result may still wait: a rate limit can
	// end a poll early, and the next poll continues there.
	ListJobs(ctx context.Context, repositories []string) ([]Job, error)
}

// Redeliverer is a Provider whose platform can deliver webhooks again on request.
type Redeliverer interface {
	// Redeliver requests a redelivery of every webhook delivery to url that failed after since and
	// was not delivered later. It returns the number of requested redeliveries.
	Redeliver(ctx context.Context, url string, since time.Time) (requested int, err error)
}

// Streamer is a Provider that receives job updates over its own connection (a long poll) instead of
// a webhook.
type Streamer interface {
	// StreamJobs calls handle with jobs whenever they change, until ctx ends or the stream breaks.
	// It acknowledges the updates to the platform only after handle has returned nil. capacity
	// returns how many jobs can run at present, including those that already run.
	StreamJobs(ctx context.Context, capacity func() int, handle func(context.Context, []Job) error) error
}

// ReleaseFinder is a Provider whose platform names the newest release of its runner.
type ReleaseFinder interface {
	// FindRelease returns the newest release for an operating system and an architecture, in the platform's
	// names. The result may be an hour old. An error of kind Rejected names the fix.
	FindRelease(ctx context.Context, os, arch string) (Release, error)
}

// Release is one release of a runner, and a download of it.
type Release struct {
	Version string
	URL     string
	// SHA256 is the checksum of the download in hexadecimal.
	SHA256 string
}

// RunnerRequest describes one runner to create.
type RunnerRequest struct {
	Name   string
	Labels []string
	// Group is the runner group to join. Empty means the default group.
	Group string
	// WorkDir is the directory in which jobs run.
	WorkDir string
	// Registration is v1alpha1.RegistrationJIT or v1alpha1.RegistrationToken.
	Registration string
	// CanRunUntagged and Description have the same meaning as in RunnerSpec.
	CanRunUntagged bool
	Description    string
	// Job is the only job that the runner may run, if RunnerSpec.NeedsJob is set. A repeated
	// request for the same runner and job returns a credential for the same job.
	Job *Job
	// Timeout is the time within which the runner must start the job. Zero means the default.
	Timeout time.Duration
}

// Credential contains what a machine needs to register as one runner. It is secret.
type Credential struct {
	// Either JITConfig, or RunnerToken and RegistrationURL, are set. Gitea and Forgejo set all
	// three.
	JITConfig       string
	RunnerToken     string
	RegistrationURL string
	// ExpiresAt is when the credential expires. It is zero if that is unknown.
	ExpiresAt time.Time
	// RunnerID is set if the runner is already registered (JIT).
	RunnerID string
	// JobID is set if the runner takes only that job.
	JobID string
	// Env is added to the environment of the job's command (generic).
	Env map[string]string
}

// Apply copies the credential into a machine's configuration.
func (c Credential) Apply(config *guest.Config) {
	config.JITConfig, config.RunnerToken, config.RegistrationURL = c.JITConfig, c.RunnerToken, c.RegistrationURL
	config.JobID, config.Env = c.JobID, c.Env

	if !c.ExpiresAt.IsZero() {
		config.ExpiresAt = &c.ExpiresAt
	}
}

// Runner is a runner as the platform lists it.
type Runner struct {
	ID, Name     string
	Online, Busy bool
	Labels       []string
}

// Job is a job as the platform describes it. It is the spec of a RunnerJob.
type Job = v1alpha1.RunnerJobSpec

// WebhookParser verifies and parses the webhooks of one platform. It has no side effects.
type WebhookParser interface {
	// ParseScope returns the scope that the webhook claims to come from, so that the caller can
	// choose the secrets to verify it with. The result is untrusted until Verify succeeds.
	ParseScope(header http.Header, body []byte) (Scope, error)
	// Verify checks the webhook's signature or token in constant time. The error is ErrSignature,
	// or it names what is missing.
	Verify(header http.Header, body []byte, secret []byte) error
	// ParseJob returns the job. isJobEvent is false if the event is not about a job.
	ParseJob(header http.Header, body []byte) (job Job, isJobEvent bool, err error)
}

// Scope identifies the part of a platform that runners or a webhook belong to.
type Scope struct {
	// Repository is the name that the platform uses: owner/name, group/subgroup/project, or the
	// slug of a pipeline.
	Repository string
	// Organization is the organization or group that the repository belongs to.
	Organization string
	// Enterprise is the enterprise that the organization belongs to.
	Enterprise string
	// Server is the host of the platform's server, if the platform has several servers.
	Server string
}

// MaxRunnerNameLength is the longest runner name that every platform accepts (GitHub's limit).
const MaxRunnerNameLength = 64

const uidLength = 8

// RunnerName returns the name of a claim's runner: the claim's name and the first eight characters
// of its uid, at most 64 characters. It truncates the claim's name and never the uid, so that two
// claims never share a runner name.
func RunnerName(claim string, uid types.UID) string {
	suffix := string(uid)
	if len(suffix) > uidLength {
		suffix = suffix[:uidLength]
	}

	if suffix == "" {
		return claim[:min(len(claim), MaxRunnerNameLength)]
	}

	limit := MaxRunnerNameLength - len(suffix) - 1
	if len(claim) > limit {
		claim = strings.TrimRight(claim[:limit], "-")
	}

	return claim + "-" + suffix
}

// ClaimOfRunner returns the name of the claim that a runner belongs to, or "" if RunnerName did not create the
// runner's name. If RunnerName has truncated the name of the claim, ClaimOfRunner returns the truncated name.
func ClaimOfRunner(runner string) string {
	index := len(runner) - uidLength - 1
	if index < 1 || runner[index] != '-' {
		return ""
	}

	return runner[:index]
}
