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

// Platform implements workload.Platform for GitLab CI. The zero value is ready to use.
type Platform struct{ Webhooks }

var _ workload.Platform = Platform{}

// secretToken is the key of the secret that Open needs: the access token.
const secretToken = "token"

// Traits returns the traits of GitLab.
func (Platform) Traits() workload.Traits {
	return workload.Traits{
		Slug: "gitlab", JobPrefix: "gl",
		PublicServers: []string{"gitlab.com"},
		OperationName: OperationName,
		IsConfigured:  func(config *v1alpha1.BootstrapConfig) bool { return config.GitLab != nil },
	}
}

// ResolveRunner reads the scope and the tags from the workload, and the credentials and the runner
// program from the template. If the workload names neither a project nor a group, the scope is the
// whole instance.
func (Platform) ResolveRunner(
	template *v1alpha1.HypervisorMachineTemplate, spec v1alpha1.Workload,
) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{Platform: v1alpha1.WorkloadGitLabCI, Registration: v1alpha1.RegistrationToken}
	config, bootstrap := findConfig(spec), findBootstrap(template)
	out.Program = buildProgram(bootstrap)

	if config != nil {
		out.URL, out.Labels = strings.TrimRight(strings.TrimSpace(config.URL), "/"), deduplicateTags(config.Tags)
		out.Scope = workload.Scope{Server: parseServer(out.URL), Repository: trimPath(config.ProjectID)}
		out.CanRunUntagged, out.Description = config.RunUntagged, config.Description

		if out.Scope.Repository == "" {
			out.Scope.Organization = trimPath(config.GroupID)
		}
	}

	if bootstrap == nil {
		return out, workload.NewMissingBootstrapError(template, "gitlab")
	}

	out.Secrets, out.Servers = map[string]v1alpha1.SecretValueSource{secretToken: bootstrap.Credentials}, listServers(out.URL)

	if client := template.Spec.Bootstrap.Config.HTTPClient; client != nil {
		out.Timeout = time.Duration(client.TimeoutSeconds) * time.Second
	}

	if config == nil || out.Scope.Server == "" {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"configure GitLab for template %s: set url, and projectId or groupId, in workload.config.gitlab",
			template.Name)
	}

	return out, nil
}

func findConfig(spec v1alpha1.Workload) *v1alpha1.GitLabCIConfig {
	if spec.Config == nil {
		return nil
	}

	return spec.Config.GitLab
}

func findBootstrap(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.GitLabBootstrap {
	if template == nil || template.Spec.Bootstrap.Config == nil {
		return nil
	}

	return template.Spec.Bootstrap.Config.GitLab
}

// buildProgram returns the runner's settings, with the same defaults that the API server sets.
func buildProgram(bootstrap *v1alpha1.GitLabBootstrap) guest.Runner {
	out := guest.Runner{Program: "/usr/bin/gitlab-runner", WorkDir: "/tmp/runner-work", OS: "linux", Arch: "amd64"}
	if bootstrap == nil {
		return out
	}

	if bootstrap.Program != "" {
		out.Program = bootstrap.Program
	}

	if bootstrap.WorkDir != "" {
		out.WorkDir = bootstrap.WorkDir
	}

	return out
}

// deduplicateTags returns the tags without blanks around them, empty tags and duplicates. GitLab's
// tags are case-sensitive.
func deduplicateTags(configured []string) []string {
	var out []string

	for _, tag := range configured {
		if tag = strings.TrimSpace(tag); tag != "" && !slices.Contains(out, tag) {
			out = append(out, tag)
		}
	}

	return out
}

// parseServer returns the host of an instance, and its path if the instance is not at the root. It
// returns "" if the address is not a valid URL.
func parseServer(address string) string {
	parsed, err := url.Parse(address)
	if err != nil || parsed.Host == "" {
		return ""
	}

	return strings.ToLower(parsed.Host) + strings.TrimRight(parsed.Path, "/")
}

// trimPath returns a configured project or group, which is a path or a numeric id, without outer
// blanks and slashes.
func trimPath(text string) string { return strings.Trim(strings.TrimSpace(text), "/") }

// isID reports whether a configured project or group is a numeric id. GitLab's API treats every
// path of only digits as an id too.
func isID(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// MatchJob applies GitLab's rules: a runner takes the jobs of its project, of its group's projects
// or of its instance, if it has all tags of the job. Tags are case-sensitive. It takes jobs without
// tags if it may run untagged jobs
// (https://docs.gitlab.com/ci/runners/configure_runners/#control-jobs-that-a-runner-can-run).
func (Platform) MatchJob(runner workload.RunnerSpec, job workload.Job) workload.JobMatch {
	match := workload.JobMatch{InScope: isInScope(runner.Scope, job)}
	if !match.InScope {
		return match
	}

	if len(job.Labels) == 0 {
		match.Matched = runner.CanRunUntagged
		if !match.Matched {
			match.Message = "the job has no tags: set runUntagged in the pool's workload.config.gitlab, or add tags to the job"
		}

		return match
	}

	match.MissingLabels = slices.DeleteFunc(slices.Clone(job.Labels), func(tag string) bool {
		return slices.Contains(runner.Labels, tag)
	})
	match.Matched = len(match.MissingLabels) == 0

	return match
}

// isInScope reports whether the job belongs to the scope, whatever its tags are. It returns true
// for every job of the server if the project or group is a numeric id, because jobs contain only
// paths.
func isInScope(scope workload.Scope, job workload.Job) bool {
	switch {
	case scope.Server == "" || !isSameServer(scope.Server, job.URL):
		return false
	case scope.Repository != "":
		return isID(scope.Repository) || strings.EqualFold(scope.Repository, job.Repository)
	case scope.Organization != "":
		return isID(scope.Organization) || isInGroup(scope.Organization, job.Repository)
	default:
		return true
	}
}

// isInGroup reports whether a project is in a group or one of its subgroups. GitLab's paths are
// case-insensitive.
func isInGroup(group, project string) bool {
	return len(project) > len(group) && project[len(group)] == '/' && strings.EqualFold(project[:len(group)], group)
}

// isSameServer reports whether a job's URL belongs to the server. It returns true for a job without
// a URL, because the job's server is then unknown.
func isSameServer(server, link string) bool {
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

// Open creates the provider of the runner's scope.
func (Platform) Open(config workload.Config) (workload.Provider, error) {
	if findBootstrap(config.Template) == nil {
		return nil, workload.NewMissingBootstrapError(config.Template, "gitlab")
	}

	return newProvider(Config{
		URL: config.Runner.URL, Project: config.Runner.Scope.Repository, Group: config.Runner.Scope.Organization,
		Token: config.Secrets[secretToken], Timeout: config.Runner.Timeout,
		WrapTransport: config.WrapTransport, BaseTransport: config.BaseTransport,
	}, config.ClockOrReal())
}
