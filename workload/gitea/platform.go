// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// secretToken is the key of the secret that Open needs: the access token.
	secretToken = "token"
	// forgejoPollInterval is short, because Forgejo sends no webhooks for jobs.
	forgejoPollInterval = 5 * time.Second
)

// Platform implements workload.Platform for Forgejo Actions or Gitea Actions. Create it with
// Forgejo or Gitea.
type Platform struct{ Webhooks }

var _ workload.Platform = Platform{}

// Forgejo returns the platform of Forgejo Actions.
func Forgejo() Platform { return Platform{Webhooks{kindForgejo}} }

// Gitea returns the platform of Gitea Actions.
func Gitea() Platform { return Platform{Webhooks{kindGitea}} }

// Traits returns the traits of the server's kind.
func (p Platform) Traits() workload.Traits {
	out := workload.Traits{
		Slug: string(p.kind), JobPrefix: "gitea", OperationName: OperationName,
		IsConfigured: func(config *v1alpha1.BootstrapConfig) bool { return config.Gitea != nil },
		// Gitea before 1.27 keeps the id of a job that is run again (services/actions/rerun.go). A handle of
		// Forgejo belongs to one attempt.
		ReusesJobIDs: p.kind == kindGitea,
	}

	if p.kind == kindForgejo {
		out.JobPrefix = "fj"
		out.IsConfigured = func(config *v1alpha1.BootstrapConfig) bool { return config.Forgejo != nil }
	}

	return out
}

// ResolveRunner reads the scope and the labels from the workload, and the credentials and the
// runner program from the template. If the workload names neither a repository nor an organization,
// the scope is the whole instance.
func (p Platform) ResolveRunner(
	template *v1alpha1.HypervisorMachineTemplate, spec v1alpha1.Workload,
) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{
		Platform: p.kind.workloadType(), Registration: v1alpha1.RegistrationJIT, NeedsJob: p.kind == kindForgejo,
	}
	config, bootstrap := p.kind.findConfig(spec), p.kind.findBootstrap(template)
	out.Program = p.kind.buildProgram(bootstrap)

	if p.kind == kindForgejo {
		out.PollInterval = forgejoPollInterval
	}

	if config != nil {
		out.URL = strings.TrimRight(strings.TrimSpace(config.URL), "/")
		out.Scope = workload.Scope{Server: parseServer(out.URL), Repository: config.Repository, Organization: config.Organization}
		out.Labels = slices.Clone(config.Labels)
	}

	if bootstrap == nil {
		return out, workload.NewMissingBootstrapError(template, string(p.kind))
	}

	out.Secrets, out.Servers = map[string]v1alpha1.SecretValueSource{secretToken: bootstrap.Credentials}, p.kind.listServers(out.URL)

	if client := template.Spec.Bootstrap.Config.HTTPClient; client != nil {
		out.Timeout = time.Duration(client.TimeoutSeconds) * time.Second
	}

	if config == nil || out.Scope.Server == "" {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"configure %s for template %s: set url, and repository or organization, in workload.config.%s",
			p.kind, template.Name, string(p.kind))
	}

	return out, nil
}

func (k kind) findConfig(spec v1alpha1.Workload) *v1alpha1.GiteaConfig {
	switch {
	case spec.Config == nil:
		return nil
	case k == kindForgejo:
		return spec.Config.Forgejo
	default:
		return spec.Config.Gitea
	}
}

func (k kind) findBootstrap(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.GiteaBootstrap {
	switch {
	case template == nil || template.Spec.Bootstrap.Config == nil:
		return nil
	case k == kindForgejo:
		return template.Spec.Bootstrap.Config.Forgejo
	default:
		return template.Spec.Bootstrap.Config.Gitea
	}
}

// buildProgram returns the runner program's settings with their defaults.
func (k kind) buildProgram(bootstrap *v1alpha1.GiteaBootstrap) guest.Runner {
	out := guest.Runner{Program: "/usr/bin/act_runner", WorkDir: "/tmp/runner-work", OS: "linux", Arch: "amd64"}
	if k == kindForgejo {
		out.Program = "/usr/bin/forgejo-runner"
	}

	if bootstrap != nil {
		out.Program, out.WorkDir = cmp.Or(bootstrap.Program, out.Program), cmp.Or(bootstrap.WorkDir, out.WorkDir)
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

// MatchJob applies the servers' rule: a runner takes the jobs of its repository, of its
// organization's repositories or of its instance, if it has all labels of the job. Labels are
// case-sensitive (ActionRunner.CanMatchLabels in Gitea, ActionRunJob.ItRunsOn in Forgejo).
func (Platform) MatchJob(runner workload.RunnerSpec, job workload.Job) workload.JobMatch {
	match := workload.JobMatch{InScope: isInScope(runner.Scope, job)}
	if !match.InScope {
		return match
	}

	match.MissingLabels = slices.DeleteFunc(slices.Clone(job.Labels), func(label string) bool {
		return slices.Contains(runner.Labels, label)
	})
	match.Matched = len(match.MissingLabels) == 0

	return match
}

// isInScope reports whether the job belongs to the scope, whatever its labels are. Names are
// case-insensitive at the servers.
func isInScope(scope workload.Scope, job workload.Job) bool {
	owner, _, _ := strings.Cut(job.Repository, "/")

	switch {
	case scope.Server == "" || !isSameServer(scope.Server, job.URL):
		return false
	case scope.Repository != "":
		return strings.EqualFold(scope.Repository, job.Repository)
	case scope.Organization != "":
		return strings.EqualFold(scope.Organization, cmp.Or(job.Organization, owner))
	default:
		return true
	}
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
func (p Platform) Open(config workload.Config) (workload.Provider, error) {
	if p.kind.findBootstrap(config.Template) == nil {
		return nil, workload.NewMissingBootstrapError(config.Template, string(p.kind))
	}

	out, err := newProvider(p.kind, Config{
		URL: config.Runner.URL, Repository: config.Runner.Scope.Repository, Organization: config.Runner.Scope.Organization,
		Token: config.Secrets[secretToken], Timeout: config.Runner.Timeout,
		WrapTransport: config.WrapTransport, BaseTransport: config.BaseTransport,
	}, config.ClockOrReal())
	if err != nil {
		return nil, err
	}

	return out, nil
}
