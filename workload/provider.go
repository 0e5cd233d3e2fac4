// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"net/http"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Provider is one scope of a CI platform. It is safe for concurrent use.
type Provider interface {
	// Validate asks the platform whether the credentials suffice and the scope and
	// runner group exist. An error of kind Rejected names the mend.
	Validate(ctx context.Context) error

	// Issue makes the credential of one runner. A runner of that name which is offline
	// is a remnant of an earlier try and is replaced; one that is online or busy is an
	// error of kind Conflict.
	Issue(ctx context.Context, req RunnerRequest) (Credential, error)

	// Find gives the runner of that name, from a listing that all callers share and that
	// is at most maxAge old. Kind NotFound means that there is none.
	Find(ctx context.Context, name string, maxAge time.Duration) (Runner, error)

	// Runners gives the scope's runners whose names begin with prefix.
	Runners(ctx context.Context, prefix string) ([]Runner, error)

	// Deregister removes the runner. Kind RunnerBusy means that it runs a job and was
	// not removed: the caller must not destroy its machine. NotFound is success.
	Deregister(ctx context.Context, id string) error

	// Job gives the platform's present word on a job, to repair what webhooks missed.
	Job(ctx context.Context, repository, id string) (Job, error)
}

// Factory makes the provider of a scope. It makes no call: Validate does.
type Factory func(Config) (Provider, error)

// Config is a template's and a pool's settings with their secrets read.
type Config struct {
	// GitHub's settings, for the workload type github-actions.
	GitHub *GitHubConfig
	// Timeout of one call.
	Timeout time.Duration
	// Transport wraps the HTTP transport, for metrics and traces. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
}

// GitHubConfig is one scope of GitHub.
type GitHubConfig struct {
	// App or Token authenticates; exactly one is set.
	App   *GitHubApp
	Token string
	// Owner and Repository, or Organization, are the scope.
	Owner, Repository, Organization string
	// APIURL, RegistrationURLs and RunnerURLs as in the template.
	APIURL           string
	RegistrationURLs v1alpha1.GitHubURLs
	RunnerURLs       v1alpha1.GitHubURLs
	// RunnerGroup that Validate looks for; empty means the default one. Issue goes by
	// its request.
	RunnerGroup string
}

// GitHubApp is an installation of a GitHub App.
type GitHubApp struct {
	// AppID is the numeric id or client id.
	AppID          string
	PrivateKey     []byte
	InstallationID int64
}

// RunnerRequest is one runner wanted.
type RunnerRequest struct {
	Name   string
	Labels []string
	// Group to join; empty means the default one.
	Group string
	// WorkDir of jobs.
	WorkDir string
	// Registration is v1alpha1.RegistrationJIT or v1alpha1.RegistrationToken.
	Registration string
}

// Credential is what a machine needs to be one runner. It is secret.
type Credential struct {
	// JITConfig or RunnerToken with RegistrationURL is set.
	JITConfig       string
	RunnerToken     string
	RegistrationURL string
	// ExpiresAt is when it stops to be of use, if that is known.
	ExpiresAt time.Time
	// RunnerID is set where the runner exists already (JIT).
	RunnerID string
}

// Apply writes the credential into a machine's configuration.
func (c Credential) Apply(to *guest.Config) {
	to.JITConfig, to.RunnerToken, to.RegistrationURL = c.JITConfig, c.RunnerToken, c.RegistrationURL
	if !c.ExpiresAt.IsZero() {
		to.ExpiresAt = &c.ExpiresAt
	}
}

// Runner is a runner as the platform lists it.
type Runner struct {
	ID, Name     string
	Online, Busy bool
	Labels       []string
}

// Job is a job as the platform describes it: the spec of a RunnerJob.
type Job = v1alpha1.RunnerJobSpec

// WebhookParser verifies and reads the webhooks of one platform. It is pure.
type WebhookParser interface {
	// Scope reads, without trust, whose webhook it claims to be, so that the secrets to
	// verify it with can be chosen.
	Scope(header http.Header, body []byte) (Scope, error)
	// Verify checks the body's signature in constant time. The error is ErrSignature or
	// says what is missing.
	Verify(header http.Header, body []byte, secret []byte) error
	// Parse reads the job, and false where the event speaks of none.
	Parse(header http.Header, body []byte) (Job, bool, error)
}

// Scope is whose webhook it is.
type Scope struct {
	// Repository as owner/name; Organization where the owner is one.
	Repository, Organization string
}
