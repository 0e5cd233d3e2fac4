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

// Platform is what is known of a CI platform without asking it: how its settings are
// read, which jobs its runners are given, and what its webhooks say. It is pure and safe
// for concurrent use.
type Platform interface {
	WebhookParser

	// Traits are what is different about the platform. They never change.
	Traits() Traits

	// Runner reads the settings of a template and of a workload, which is a pool's or a
	// claim's; the workload's win. The template may be nil where it is not known (yet).
	// An error is of class Configuration and names the field; the RunnerSpec that comes
	// with it holds what could be read.
	Runner(template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload) (RunnerSpec, error)

	// Fit tells whether the platform offers a job to such runners.
	Fit(runner RunnerSpec, job Job) Fit

	// Open makes the provider of a runner's scope. It makes no call: Validate does.
	Open(config Config) (Provider, error)
}

// Traits are what is different about a platform, for those who do not know its name.
type Traits struct {
	// Slug is the platform's short name, as in the path of its webhooks: github.
	Slug string
	// JobPrefix begins the names of its RunnerJobs: gh. It never changes: names are kept.
	JobPrefix string
	// MachineEndsJobs says that the platform does not tell when a job has ended without a
	// result: that its machine is gone does.
	MachineEndsJobs bool
	// Configured tells whether a template has settings of the platform. Nil: templates have
	// none.
	Configured func(*v1alpha1.BootstrapConfig) bool
	// Servers are the platform's public ones, as httpbound.Server names them.
	Servers []string
	// Hosted tells whether labels are those of a job for the platform's own machines, which
	// its webhooks speak of all the same. Nil: it has none.
	Hosted func(labels []string) bool
	// Operation names a call to the platform in the metrics, by few words however many ids
	// there are. Nil: nobody calls it.
	Operation func(*http.Request) string
}

// RunnerSpec says whose runners are made, and which jobs they take.
type RunnerSpec struct {
	// Platform is the workload type.
	Platform string
	// URL of the platform's server, where the settings name one (GitLab).
	URL   string
	Scope Scope
	// Labels of the runners, default ones included.
	Labels []string
	// Queue that the jobs come from, where the platform has such: a runner scale set of
	// GitHub, a queue of Buildkite.
	Queue string
	// Group of runners to join; empty means the default one.
	Group string
	// Name of the one runner that a claim asks for; empty means a name made for it.
	Name string
	// Registration is v1alpha1.RegistrationJIT or v1alpha1.RegistrationToken.
	Registration string
	// Untagged says that the runners take jobs without labels (GitLab).
	Untagged bool
	// Description of the runners, for people (GitLab).
	Description string
	// Binds says that each runner is made for one job, which it is told by its id.
	Binds bool
	// Metadata of the runners' own for people, where the platform has such: a stack's of
	// Buildkite. The first of several pools that share a provider is the one that counts.
	Metadata map[string]string
	// Program is the runner's program in the machine.
	Program guest.Runner
	// Command runs in the machine where the platform has no program of its own.
	Command []string
	// Secrets that Open needs, by a name of the platform's own.
	Secrets map[string]v1alpha1.SecretValueSource
	// Servers that Secrets are sent to, as httpbound.Server names them. None where the
	// settings name none that can be called: Open says what is wrong with them.
	Servers []string
	// Timeout of one call to the platform; zero means the default.
	Timeout time.Duration
	// PollInterval is how often the platform wants to be asked for jobs; zero leaves it to
	// the pool.
	PollInterval time.Duration
}

// Fit is how a job and runners go together.
type Fit struct {
	// Takes: the platform offers the job to such runners.
	Takes bool
	// Covers: the runners belong to the job's scope, whatever their labels.
	Covers bool
	// Missing are the job's labels that the runners lack.
	Missing []string
	// Why says in a sentence that names the fix why the job is not taken, where Covers
	// and Missing do not say it.
	Why string
}

// Config is what a provider is made of: the settings of its runners' scope, with their
// secrets read.
type Config struct {
	// Runner as Platform.Runner gave it.
	Runner RunnerSpec
	// Template that it was read from. Pools of one template, scope, group and queue share
	// a provider: what else a pool says comes with each RunnerRequest.
	Template *v1alpha1.HypervisorMachineTemplate
	// Secrets by the names in Runner.Secrets.
	Secrets map[string]string
	// Transport wraps the HTTP transport, for metrics and traces. May be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Network is the transport below that. Nil: httpbound.Shared.
	Network http.RoundTripper
	// Clock is what the provider goes by; see Time.
	Clock clock.Clock
}

// Time is the clock that the provider goes by: the real one where none is given.
func (c Config) Time() clock.Clock {
	if c.Clock == nil {
		return clock.RealClock{}
	}

	return c.Clock
}
