// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Platform is GitLab CI. The zero value is ready.
type Platform struct{ Webhooks }

var _ workload.Platform = Platform{}

// secretToken is the access token that Open takes.
const secretToken = "token"

// Traits are GitLab's.
func (Platform) Traits() workload.Traits {
	return workload.Traits{
		Slug: "gitlab", JobPrefix: "gl",
		Servers:    []string{"gitlab.com"},
		Operation:  Operation,
		Configured: func(config *v1alpha1.BootstrapConfig) bool { return config.GitLab != nil },
	}
}

// Runner reads the scope and the tags from the workload, credentials and program from the
// template. A workload with neither project nor group has runners of the whole instance.
func (Platform) Runner(template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{Platform: v1alpha1.WorkloadGitLabCI, Registration: v1alpha1.RegistrationToken}
	own, from := settingsOf(load), bootstrapOf(template)
	out.Program = program(from)

	if own != nil {
		out.URL, out.Labels = strings.TrimRight(strings.TrimSpace(own.URL), "/"), tagsOf(own.Tags)
		out.Scope = workload.Scope{Server: serverOf(out.URL), Repository: pathOf(own.ProjectID)}
		out.Untagged, out.Description = own.RunUntagged, own.Description

		if out.Scope.Repository == "" {
			out.Scope.Organization = pathOf(own.GroupID)
		}
	}

	if from == nil {
		return out, workload.MissingBootstrap(template, "gitlab")
	}

	out.Secrets, out.Servers = map[string]v1alpha1.SecretValueSource{secretToken: from.Credentials}, serversOf(out.URL)

	if client := template.Spec.Bootstrap.Config.HTTPClient; client != nil {
		out.Timeout = time.Duration(client.TimeoutSeconds) * time.Second
	}

	if own == nil || out.Scope.Server == "" {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"reach GitLab for template %s: set the url of the instance, and a projectId or groupId, in the pool's workload.config.gitlab",
			template.Name)
	}

	return out, nil
}

func settingsOf(load v1alpha1.Workload) *v1alpha1.GitLabCIConfig {
	if load.Config == nil {
		return nil
	}

	return load.Config.GitLab
}

func bootstrapOf(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.GitLabBootstrap {
	if template == nil || template.Spec.Bootstrap.Config == nil {
		return nil
	}

	return template.Spec.Bootstrap.Config.GitLab
}

// program gives the runner's settings with the defaults that the API server would set.
func program(from *v1alpha1.GitLabBootstrap) guest.Runner {
	out := guest.Runner{Program: "/usr/bin/gitlab-runner", WorkDir: "/tmp/runner-work", OS: "linux", Arch: "amd64"}
	if from == nil {
		return out
	}

	if from.Program != "" {
		out.Program = from.Program
	}

	if from.WorkDir != "" {
		out.WorkDir = from.WorkDir
	}

	return out
}

// tagsOf gives each tag once. GitLab tells apart tags that differ in case.
func tagsOf(configured []string) []string {
	var out []string

	for _, tag := range configured {
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(out, tag) {
			out = append(out, tag)
		}
	}

	return out
}

// serverOf gives the host of an instance, with the path below which it lives if it has
// one; empty where the URL is none.
func serverOf(address string) string {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" {
		return ""
	}

	return strings.ToLower(parsed.Host) + strings.TrimRight(parsed.Path, "/")
}

// pathOf gives a project or a group as it was written: a path, or an id of digits.
func pathOf(written string) string { return strings.Trim(strings.TrimSpace(written), "/") }

// isID tells whether a project or a group is written as its id. A path never is all
// digits to GitLab's API: it takes that for an id as well.
func isID(written string) bool {
	return written != "" && strings.Trim(written, "0123456789") == ""
}

// Fit goes by GitLab's rules: a runner takes the jobs of its project, of its group's
// projects or of its instance whose tags it has all of, to the letter; and jobs without
// tags if it may run untagged ones
// (https://docs.gitlab.com/ci/runners/configure_runners/#control-jobs-that-a-runner-can-run).
func (Platform) Fit(runner workload.RunnerSpec, job workload.Job) workload.Fit {
	fit := workload.Fit{Covers: covers(runner.Scope, job)}
	if !fit.Covers {
		return fit
	}

	if len(job.Labels) == 0 {
		if fit.Takes = runner.Untagged; !fit.Takes {
			fit.Why = "the job has no tags: set runUntagged in the pool's workload.config.gitlab, or give the job tags"
		}

		return fit
	}

	fit.Missing = slices.DeleteFunc(slices.Clone(job.Labels), func(tag string) bool {
		return slices.Contains(runner.Labels, tag)
	})
	fit.Takes = len(fit.Missing) == 0

	return fit
}

// covers tells whether runners of a scope are offered the job, whatever its tags. Of a
// project or group that is given by its id it can't be told: jobs bear paths.
func covers(scope workload.Scope, job workload.Job) bool {
	switch {
	case scope.Server == "" || !sameServer(scope.Server, job.URL):
		return false
	case scope.Repository != "":
		return isID(scope.Repository) || strings.EqualFold(scope.Repository, job.Repository)
	case scope.Organization != "":
		return isID(scope.Organization) || below(scope.Organization, job.Repository)
	default:
		return true
	}
}

// below tells whether a project is in a group or in a subgroup of it. GitLab tells no
// paths apart that differ in case alone.
func below(group, project string) bool {
	return len(project) > len(group) && project[len(group)] == '/' && strings.EqualFold(project[:len(group)], group)
}

// sameServer tells whether a job's URL is one of the server's. A job without one may be
// anybody's.
func sameServer(server, link string) bool {
	if link == "" {
		return true
	}

	host, path, _ := strings.Cut(server, "/")

	parsed, err := url.Parse(link)
	if err != nil || !strings.EqualFold(parsed.Host, host) {
		return false
	}

	return path == "" || strings.HasPrefix(parsed.Path, "/"+path+"/")
}

// Open makes the provider of the runner's scope.
func (Platform) Open(config workload.Config) (workload.Provider, error) {
	if bootstrapOf(config.Template) == nil {
		return nil, workload.MissingBootstrap(config.Template, "gitlab")
	}

	return newProvider(Config{
		URL: config.Runner.URL, Project: config.Runner.Scope.Repository, Group: config.Runner.Scope.Organization,
		Token: config.Secrets[secretToken], Timeout: config.Runner.Timeout, Transport: config.Transport, Network: config.Network,
	}, config.Time())
}
