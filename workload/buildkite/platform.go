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
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Platform implements workload.Platform for Buildkite. The zero value is ready to use.
type Platform struct{ Webhooks }

var _ workload.Platform = Platform{}

// secretToken is the key of the secret that Open needs: the cluster's agent token.
const secretToken = "token"

const (
	// defaultQueue is the queue of agents and jobs that name no queue. It applies outside of
	// clusters and in most clusters.
	defaultQueue   = "default"
	defaultProgram = "/usr/bin/buildkite-agent"
	defaultWorkDir = "/tmp/runner-work"
	queueTag       = "queue"
	// pollInterval keeps a queue connected, which needs a poll about every 30 seconds, and limits
	// the time until a job without a webhook is found.
	pollInterval = 10 * time.Second
	// clusterDefaultQueue is the Stacks API's name for the cluster's default queue, whatever its
	// key is. Webhooks and agents do not use this name.
	clusterDefaultQueue = "__default__"
)

// Traits returns the traits of Buildkite.
func (Platform) Traits() workload.Traits {
	return workload.Traits{
		Slug: "buildkite", JobPrefix: "bk",
		PublicServers: []string{"agent.buildkite.com"},
		OperationName: OperationName,
		IsConfigured:  func(config *v1alpha1.BootstrapConfig) bool { return config.Buildkite != nil },
	}
}

// ResolveRunner reads the organization, queue and tags from the workload, and the agent's settings
// and credentials from the template.
func (Platform) ResolveRunner(
	template *v1alpha1.HypervisorMachineTemplate, spec v1alpha1.Workload,
) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{
		Platform: v1alpha1.WorkloadBuildkite, Registration: v1alpha1.RegistrationToken, NeedsJob: true, Queue: defaultQueue,
		PollInterval: pollInterval,
	}
	bootstrap := findBootstrap(template)
	out.Program = newRunner(bootstrap)

	var tagsErr error

	if config := findConfig(spec); config != nil {
		out.Scope.Organization = strings.TrimSpace(config.Organization)
		out.Queue = cmp.Or(strings.TrimSpace(config.Queue), defaultQueue)
		out.Metadata = config.Metadata
		out.Labels, tagsErr = buildLabels(out.Queue, config.Tags)
	} else {
		out.Labels, tagsErr = buildLabels(out.Queue, nil)
	}

	if bootstrap == nil {
		return out, workload.NewMissingBootstrapError(template, "buildkite")
	}

	if client := template.Spec.Bootstrap.Config.HTTPClient; client != nil {
		out.Timeout = time.Duration(client.TimeoutSeconds) * time.Second
	}

	out.Secrets = map[string]v1alpha1.SecretValueSource{secretToken: bootstrap.Credentials}

	if _, base, err := parseEndpoint(bootstrap.Endpoint); err == nil {
		out.Servers = []string{bounds.Server(base)}
	}

	if out.Scope.Organization == "" {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"configure Buildkite for template %s: set organization in workload.config.buildkite", template.Name)
	}

	return out, tagsErr
}

func findConfig(spec v1alpha1.Workload) *v1alpha1.BuildkiteConfig {
	if spec.Config == nil {
		return nil
	}

	return spec.Config.Buildkite
}

func findBootstrap(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.BuildkiteBootstrap {
	if template == nil || template.Spec.Bootstrap.Config == nil {
		return nil
	}

	return template.Spec.Bootstrap.Config.Buildkite
}

// newRunner returns the settings of the agent on its machine, with the same defaults that the API server sets.
func newRunner(bootstrap *v1alpha1.BuildkiteBootstrap) guest.Runner {
	out := guest.Runner{Program: defaultProgram, WorkDir: defaultWorkDir, OS: "linux", Arch: "x64"}
	if bootstrap != nil {
		out.Program, out.WorkDir = cmp.Or(bootstrap.Program, out.Program), cmp.Or(bootstrap.WorkDir, out.WorkDir)
	}

	return out
}

// buildLabels returns the agent's tags, beginning with its queue. An agent of a cluster serves one
// queue.
func buildLabels(queue string, tags []string) ([]string, error) {
	out := []string{queueTag + "=" + queue}

	if queue == clusterDefaultQueue {
		return out, errclass.New(errclass.Configuration, ReasonConfig,
			"validate workload.config.buildkite.queue %s: use the queue's own key, which its page at Buildkite shows", queue)
	}

	for _, tag := range tags {
		tag = strings.TrimSpace(tag)
		key, _, _ := strings.Cut(tag, "=")

		switch {
		case key == "" || strings.ContainsAny(tag, ",\n"):
			return out, errclass.New(errclass.Configuration, ReasonConfig,
				"validate tag %q of workload.config.buildkite.tags: use the form key=value, without commas", tag)
		case key == queueTag:
			return out, errclass.New(errclass.Configuration, ReasonConfig,
				"validate tag %q of workload.config.buildkite.tags: set the queue in workload.config.buildkite.queue instead", tag)
		case !slices.Contains(out, tag):
			out = append(out, tag)
		}
	}

	return out, nil
}

// MatchJob applies Buildkite's rules: an agent takes a job of its queue if, for every agent query
// rule of the job, it has a tag with the same key and value. A rule with the value * matches any
// value (https://buildkite.com/docs/agent/cli/reference/start#agent-targeting). A tag or rule
// without a value has the value "true".
func (Platform) MatchJob(runner workload.RunnerSpec, job workload.Job) workload.JobMatch {
	match := workload.JobMatch{InScope: isInScope(runner.Scope, job)}

	switch {
	case !match.InScope:
		return match
	case job.Queue == "" && !canBeDefaultQueue(runner.Queue):
		match.Message = fmt.Sprintf("the job names no queue, so it uses its cluster's default queue, which may not be %s: "+
			"name the queue in the step's agents, or enable polling in the pool (demand.polling)", runner.Queue)

		return match
	case job.Queue != "" && job.Queue != runner.Queue:
		match.Message = fmt.Sprintf("the job waits in queue %s, but these runners serve queue %s: "+
			"change the queue in the step's agents or in workload.config.buildkite", job.Queue, runner.Queue)

		return match
	}

	match.MissingLabels = slices.DeleteFunc(slices.Clone(job.Labels), func(rule string) bool { return hasTag(rule, runner.Labels) })
	match.Matched = len(match.MissingLabels) == 0

	return match
}

// hasTag reports whether the tags satisfy the rule. The rule * fits all agents. hasTag accepts every rule for
// the queue, because the caller has compared the queue, which was read from that rule.
func hasTag(rule string, tags []string) bool {
	key, wantValue := splitTag(rule)
	if key == "*" || key == queueTag {
		return true
	}

	return slices.ContainsFunc(tags, func(tag string) bool {
		name, value := splitTag(tag)

		return name == key && (wantValue == "*" || wantValue == value)
	})
}

func splitTag(tag string) (key, value string) {
	key, value, ok := strings.Cut(strings.TrimSpace(tag), "=")
	if !ok {
		value = "true"
	}

	return strings.TrimSpace(key), strings.TrimSpace(value)
}

// canBeDefaultQueue reports whether a queue can be the cluster's default queue, which jobs that
// name no queue use. Webhooks do not name the default queue. New clusters call it default-queue.
func canBeDefaultQueue(queue string) bool {
	return queue == defaultQueue || queue == "default-queue"
}

// isInScope reports whether a job belongs to the organization. A pipeline's full name begins with its organization.
func isInScope(scope workload.Scope, job workload.Job) bool {
	owner, _, _ := strings.Cut(job.Repository, "/")

	return scope.Organization != "" && strings.EqualFold(scope.Organization, cmp.Or(job.Organization, owner))
}

// Open creates the provider of one queue.
func (Platform) Open(config workload.Config) (workload.Provider, error) {
	bootstrap := findBootstrap(config.Template)
	if bootstrap == nil {
		return nil, workload.NewMissingBootstrapError(config.Template, "buildkite")
	}

	return newProvider(Config{
		Organization:  config.Runner.Scope.Organization,
		Queue:         config.Runner.Queue,
		Stack:         deriveStackKey(config),
		Metadata:      config.Runner.Metadata,
		Endpoint:      bootstrap.Endpoint,
		Token:         config.Secrets[secretToken],
		Timeout:       config.Runner.Timeout,
		WrapTransport: config.WrapTransport,
		BaseTransport: config.BaseTransport,
	}, config.ClockOrReal())
}
