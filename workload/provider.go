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

// Provider is one scope of a CI platform. It is safe for concurrent use.
type Provider interface {
	// Validate asks the platform whether the credentials suffice and the scope and
	// runner group exist. An error of kind Rejected names the fix.
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

// Poller is a provider that can list the jobs of its scope, for those whose webhook was
// lost or never sent.
type Poller interface {
	// Jobs gives the jobs that wait for a runner or run on one, as far as the platform
	// lists them: not all platforms have such a list. repositories, as the jobs of the
	// ledger name them, are those to ask for where the platform has no list of the scope.
	// The error is NothingToAsk if that leaves nothing to ask for.
	// Jobs that come with an error hold: the error speaks of what could not be read. A job
	// that is not in the answer may still wait: limits of the platform can end a poll
	// early, and the next one goes on from there.
	Jobs(ctx context.Context, repositories []string) ([]Job, error)
}

// Redeliverer is a provider whose platform delivers webhooks again when it is asked to.
type Redeliverer interface {
	// Redeliver asks for every delivery of webhooks to url that failed since then and was
	// not delivered since, and gives how many it asked for.
	Redeliver(ctx context.Context, url string, since time.Time) (int, error)
}

// Streamer is a provider that is told of jobs over a connection of its own, without a
// webhook: a long poll.
type Streamer interface {
	// Stream hands over jobs as they change, until ctx ends or the stream breaks. The
	// platform is told that jobs were heard of only when got has returned nil. capacity
	// gives how many jobs can be worked on at present, running ones included.
	Stream(ctx context.Context, capacity func() int, got func(context.Context, []Job) error) error
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
	// Untagged and Description as in RunnerSpec.
	Untagged    bool
	Description string
	// Job is the one job that the runner is for, where RunnerSpec.Binds. A request for
	// the same runner and job may come again, and gets a credential of the same job.
	Job *Job
	// Timeout is how long the runner may take to take the job; zero means the default.
	Timeout time.Duration
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
	// JobID is set where the runner takes that one job only.
	JobID string
	// Env goes into the environment of the job's command (generic).
	Env map[string]string
}

// Apply writes the credential into a machine's configuration.
func (c Credential) Apply(to *guest.Config) {
	to.JITConfig, to.RunnerToken, to.RegistrationURL = c.JITConfig, c.RunnerToken, c.RegistrationURL
	to.JobID, to.Env = c.JobID, c.Env

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
	// Repository as the platform names it: owner/name, group/subgroup/project, or the
	// slug of a pipeline.
	Repository string
	// Organization that the repository belongs to: an organisation, a group.
	Organization string
	// Enterprise that the organisation belongs to.
	Enterprise string
	// Server's host, where there is more than one of the platform.
	Server string
}

// MaxRunnerName is the longest name of a runner that every platform takes (GitHub's
// limit).
const MaxRunnerName = 64

const uidLength = 8

// RunnerName gives the name of a claim's runner: the claim's name and the first eight
// characters of its uid, at most 64 characters. The claim's name is what is cut, so that
// two claims never share a runner's name.
func RunnerName(claim string, uid types.UID) string {
	suffix := string(uid)
	if len(suffix) > uidLength {
		suffix = suffix[:uidLength]
	}

	if suffix == "" {
		return claim[:min(len(claim), MaxRunnerName)]
	}

	room := MaxRunnerName - len(suffix) - 1
	if len(claim) > room {
		claim = strings.TrimRight(claim[:room], "-")
	}

	return claim + "-" + suffix
}
