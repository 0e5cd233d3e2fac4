// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"net/http"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Platform describes a CI platform without calling it: how to resolve runner settings, which jobs
// the platform assigns to a runner, and how to parse its webhooks. Its methods make no calls and
// have no side effects. A Platform is safe for concurrent use.
type Platform interface {
	WebhookParser

	// Traits returns the properties in which platforms differ. They never change.
	Traits() Traits

	// ResolveRunner merges the settings of a template with those of a workload, which belongs to a
	// pool or a claim. The workload's settings override the template's. The template may be nil if
	// it is not known yet. An error has class Configuration and names the field. The RunnerSpec
	// that is returned with an error contains the settings that could be resolved.
	ResolveRunner(template *v1alpha1.HypervisorMachineTemplate, spec v1alpha1.Workload) (RunnerSpec, error)

	// MatchJob reports whether the platform assigns the job to a runner of this specification.
	MatchJob(runner RunnerSpec, job Job) JobMatch

	// Open creates the provider of a runner's scope. It makes no calls. Provider.Validate does.
	Open(config Config) (Provider, error)
}

// Traits are the properties in which platforms differ, for callers that do not know the platform.
type Traits struct {
	// Slug is the platform's short name, for example "github". The path of its webhooks contains
	// it.
	Slug string
	// JobPrefix is the prefix of the names of the platform's RunnerJobs, for example "gh". It never
	// changes, because RunnerJobs keep their names.
	JobPrefix string
	// NeedsMachineForJobEnd means that the platform does not report a job that ended without a
	// result. A job then counts as ended when its machine is gone.
	NeedsMachineForJobEnd bool
	// ReusesJobIDs means that a job that is run again can keep its id.
	ReusesJobIDs bool
	// IsConfigured reports whether a template has settings of the platform. It is nil if templates
	// have no settings for the platform.
	IsConfigured func(*v1alpha1.BootstrapConfig) bool
	// PublicServers are the platform's public servers, in the form that bounds.Server returns.
	PublicServers []string
	// IsHostedJob reports whether a job with these labels runs on the platform's own machines. The
	// platform sends webhooks for such jobs too. It is nil if the platform has no such machines.
	IsHostedJob func(labels []string) bool
	// OperationName returns the name of a call to the platform for the metrics. Names contain no
	// ids, so that the number of metric series stays small. It is nil if the platform has no API to
	// call.
	OperationName func(*http.Request) string
}

// RunnerSpec describes a kind of runner: its scope, the jobs that it takes and how it starts.
type RunnerSpec struct {
	// Platform is the workload type.
	Platform string
	// URL of the platform's server, if the settings name one (GitLab, Gitea, Forgejo).
	URL   string
	Scope Scope
	// Labels of the runners, including the platform's default labels.
	Labels []string
	// DefaultLabels are those of Labels that every runner of the platform has, whatever the pool's
	// settings are.
	DefaultLabels []string
	// Queue that the jobs come from, if the platform has queues: a GitHub runner scale set or a
	// Buildkite queue.
	Queue string
	// Group is the runner group to join. Empty means the default group.
	Group string
	// Registration is v1alpha1.RegistrationJIT or v1alpha1.RegistrationToken.
	Registration string
	// CanRunUntagged means that the runners also take jobs without labels (GitLab).
	CanRunUntagged bool
	// Description of the runners for people (GitLab).
	Description string
	// NeedsJob means that each runner is created for one job and gets that job's id.
	NeedsJob bool
	// Metadata of the runners for people, if the platform has metadata (a Buildkite stack). If
	// several pools share a provider, the metadata of the first pool is used.
	Metadata map[string]string
	// Program is the runner program in the guest.
	Program guest.Runner
	// Command runs in the guest if the platform has no runner program.
	Command []string
	// Secrets that Open needs, by a key that the platform defines.
	Secrets map[string]v1alpha1.SecretValueSource
	// Servers that receive the Secrets, in the form that bounds.Server returns. Servers is empty
	// if the settings name no valid server. Open then returns the error.
	Servers []string
	// Timeout of one call to the platform. Zero means the default.
	Timeout time.Duration
	// PollInterval is the platform's own interval for listing jobs. Zero means that the pool sets
	// it.
	PollInterval time.Duration
}

// JobMatch is the result of Platform.MatchJob.
type JobMatch struct {
	// Matched means that the platform assigns the job to such runners.
	Matched bool
	// InScope means that the runners belong to the job's scope, whatever their labels are.
	InScope bool
	// MissingLabels are the job's labels that the runners do not have.
	MissingLabels []string
	// Message explains why the job does not match and names the fix. It is set only if InScope and
	// MissingLabels do not explain it.
	Message string
}

// Config contains what Platform.Open needs: the settings of the runners' scope and the values of
// their secrets.
type Config struct {
	// Runner is the result of Platform.ResolveRunner.
	Runner RunnerSpec
	// Template is the template that Runner was resolved from. Pools with the same template, scope,
	// group and queue share a provider. A pool's other settings are in each RunnerRequest.
	Template *v1alpha1.HypervisorMachineTemplate
	// Secrets are the secret values by the keys of Runner.Secrets.
	Secrets map[string]string
	// WrapTransport wraps the HTTP transport, for metrics and traces. It may be nil.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// BaseTransport is the innermost HTTP transport. Nil means bounds.SharedTransport.
	BaseTransport http.RoundTripper
	// Clock is the provider's clock. Read it with ClockOrReal.
	Clock clock.Clock
}

// ClockOrReal returns Clock, or the real clock if Clock is nil.
func (c Config) ClockOrReal() clock.Clock {
	if c.Clock == nil {
		return clock.RealClock{}
	}

	return c.Clock
}
