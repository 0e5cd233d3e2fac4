// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Platform is Buildkite. The zero value is ready.
type Platform struct{ Webhooks }

var _ workload.Platform = Platform{}

// secretToken names the secret that Open takes: the agent token of the cluster.
const secretToken = "token"

const (
	// defaultQueue is that of agents and jobs that name none, outside of clusters and in
	// most of them.
	defaultQueue   = "default"
	defaultProgram = "/usr/bin/buildkite-agent"
	defaultWorkDir = "/tmp/runner-work"
	queueTag       = "queue"
	// pollInterval keeps a queue connected, which takes a poll in about 30 seconds, and
	// hears of jobs soon where there is no webhook.
	pollInterval = 10 * time.Second
	// clusterDefault is the Stacks API's word for the cluster's default queue, whatever its
	// key. Webhooks and agents do not know it.
	clusterDefault = "__default__"
)

// Traits are Buildkite's.
func (Platform) Traits() workload.Traits {
	return workload.Traits{
		Slug: "buildkite", JobPrefix: "bk",
		Servers:    []string{"agent.buildkite.com"},
		Operation:  Operation,
		Configured: func(config *v1alpha1.BootstrapConfig) bool { return config.Buildkite != nil },
	}
}

// Runner reads the pool's organization, queue and tags, and the template's agent.
func (Platform) Runner(template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{
		Platform: v1alpha1.WorkloadBuildkite, Registration: v1alpha1.RegistrationToken, Binds: true, Queue: defaultQueue,
		PollInterval: pollInterval,
	}
	from := bootstrapOf(template)
	out.Program = program(from)

	var tagsErr error

	if own := settingsOf(load); own != nil {
		out.Scope.Organization = strings.TrimSpace(own.Organization)
		out.Queue = cmp.Or(strings.TrimSpace(own.Queue), defaultQueue)
		out.Metadata = own.Metadata
		out.Labels, tagsErr = labels(out.Queue, own.Tags)
	} else {
		out.Labels, tagsErr = labels(out.Queue, nil)
	}

	if from == nil {
		return out, workload.MissingBootstrap(template, "buildkite")
	}

	if client := template.Spec.Bootstrap.Config.HTTPClient; client != nil {
		out.Timeout = time.Duration(client.TimeoutSeconds) * time.Second
	}

	out.Secrets = map[string]v1alpha1.SecretValueSource{secretToken: from.Credentials}

	if _, base, err := readEndpoint(from.Endpoint); err == nil {
		out.Servers = []string{httpbound.Server(base)}
	}

	if out.Scope.Organization == "" {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"reach Buildkite for template %s: name the organization in the pool's workload.config.buildkite", template.Name)
	}

	return out, tagsErr
}

func settingsOf(load v1alpha1.Workload) *v1alpha1.BuildkiteConfig {
	if load.Config == nil {
		return nil
	}

	return load.Config.Buildkite
}

func bootstrapOf(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.BuildkiteBootstrap {
	if template == nil || template.Spec.Bootstrap.Config == nil {
		return nil
	}

	return template.Spec.Bootstrap.Config.Buildkite
}

// program gives the agent's settings with the defaults that the API server would set.
func program(from *v1alpha1.BuildkiteBootstrap) guest.Runner {
	out := guest.Runner{Program: defaultProgram, WorkDir: defaultWorkDir, OS: "linux", Arch: "x64"}
	if from != nil {
		out.Program, out.WorkDir = cmp.Or(from.Program, out.Program), cmp.Or(from.WorkDir, out.WorkDir)
	}

	return out
}

// labels gives the agent's tags, the queue first. An agent of a cluster serves one queue.
func labels(queue string, tags []string) ([]string, error) {
	out := []string{queueTag + "=" + queue}

	if queue == clusterDefault {
		return out, errclass.New(errclass.Configuration, ReasonConfig,
			"read queue %s of workload.config.buildkite.queue: write the queue's own key, which its page at Buildkite tells", queue)
	}

	for _, tag := range tags {
		tag = strings.TrimSpace(tag)
		key, _, _ := strings.Cut(tag, "=")

		switch {
		case key == "" || strings.ContainsAny(tag, ",\n"):
			return out, errclass.New(errclass.Configuration, ReasonConfig,
				"read tag %q of workload.config.buildkite.tags: write it key=value, without commas", tag)
		case key == queueTag:
			return out, errclass.New(errclass.Configuration, ReasonConfig,
				"read tag %q of workload.config.buildkite.tags: the queue has a field of its own, workload.config.buildkite.queue", tag)
		case !slices.Contains(out, tag):
			out = append(out, tag)
		}
	}

	return out, nil
}

// Fit goes by Buildkite's rules: an agent takes a job of its queue if it has a tag for
// every agent query rule of the job, with the same value or any if the rule's value is *
// (https://buildkite.com/docs/agent/cli/reference/start#agent-targeting). Neither a tag
// nor a rule without a value differs from one with the value true.
func (Platform) Fit(runner workload.RunnerSpec, job workload.Job) workload.Fit {
	fit := workload.Fit{Covers: covers(runner.Scope, job)}

	switch {
	case !fit.Covers:
		return fit
	case job.Queue == "" && !knownDefault(runner.Queue):
		fit.Why = fmt.Sprintf("the job names no queue and so is of its cluster's default queue, which need not be %s: "+
			"name the queue in the step's agents, or let the pool poll its queue (demand.polling)", runner.Queue)

		return fit
	case job.Queue != "" && job.Queue != runner.Queue:
		fit.Why = fmt.Sprintf("the job waits in queue %s, and these runners serve queue %s: "+
			"change queue in the step's agents or in workload.config.buildkite", job.Queue, runner.Queue)

		return fit
	}

	fit.Missing = slices.DeleteFunc(slices.Clone(job.Labels), func(rule string) bool { return holds(rule, runner.Labels) })
	fit.Takes = len(fit.Missing) == 0

	return fit
}

// holds tells whether there is a tag for the rule. That the queue is right was seen: a
// rule for it is what the job's queue was read from.
func holds(rule string, tags []string) bool {
	key, want := pair(rule)
	if key == "*" || key == queueTag {
		return true
	}

	return slices.ContainsFunc(tags, func(tag string) bool {
		name, value := pair(tag)

		return name == key && (want == "*" || want == value)
	})
}

func pair(tag string) (string, string) {
	key, value, ok := strings.Cut(strings.TrimSpace(tag), "=")
	if !ok {
		value = "true"
	}

	return strings.TrimSpace(key), strings.TrimSpace(value)
}

// knownDefault tells whether a queue can be the one of jobs that name none: webhooks do
// not say which it is. New clusters call it default-queue.
func knownDefault(queue string) bool {
	return queue == defaultQueue || queue == "default-queue"
}

// covers goes by the organization, which a pipeline's full name begins with.
func covers(scope workload.Scope, job workload.Job) bool {
	owner, _, _ := strings.Cut(job.Repository, "/")

	return scope.Organization != "" && strings.EqualFold(scope.Organization, cmp.Or(job.Organization, owner))
}

// Open makes the provider of one queue.
func (Platform) Open(config workload.Config) (workload.Provider, error) {
	from := bootstrapOf(config.Template)
	if from == nil {
		return nil, workload.MissingBootstrap(config.Template, "buildkite")
	}

	return newProvider(Config{
		Organization: config.Runner.Scope.Organization,
		Queue:        config.Runner.Queue,
		Stack:        stackKey(config),
		Metadata:     config.Runner.Metadata,
		Endpoint:     from.Endpoint,
		Token:        config.Secrets[secretToken],
		Timeout:      config.Runner.Timeout,
		Transport:    config.Transport,
		Network:      config.Network,
	}, config.Time())
}
