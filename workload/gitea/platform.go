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
	// secretToken is the access token that Open takes.
	secretToken = "token"
	// pollForgejo is how often Forgejo is asked for jobs, for it tells of none by itself.
	pollForgejo = 5 * time.Second
)

// Platform is Forgejo Actions or Gitea Actions. Make it with Forgejo or Gitea.
type Platform struct{ Webhooks }

var _ workload.Platform = Platform{}

// Forgejo is Forgejo Actions.
func Forgejo() Platform { return Platform{Webhooks{kindForgejo}} }

// Gitea is Gitea Actions.
func Gitea() Platform { return Platform{Webhooks{kindGitea}} }

// Traits are the server's.
func (p Platform) Traits() workload.Traits {
	out := workload.Traits{
		Slug: string(p.kind), JobPrefix: "gitea", Operation: Operation,
		Configured: func(config *v1alpha1.BootstrapConfig) bool { return config.Gitea != nil },
	}

	if p.kind == kindForgejo {
		out.JobPrefix = "fj"
		out.Configured = func(config *v1alpha1.BootstrapConfig) bool { return config.Forgejo != nil }
	}

	return out
}

// Runner reads the scope and the labels from the workload, credentials and program from the
// template. A workload with neither repository nor organisation has runners of the whole
// instance.
func (p Platform) Runner(template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{
		Platform: p.kind.workload(), Registration: v1alpha1.RegistrationJIT, Binds: p.kind == kindForgejo,
	}
	own, from := p.kind.settingsOf(load), p.kind.bootstrapOf(template)
	out.Program = p.kind.program(from)

	if p.kind == kindForgejo {
		out.PollInterval = pollForgejo
	}

	if own != nil {
		out.URL = strings.TrimRight(strings.TrimSpace(own.URL), "/")
		out.Scope = workload.Scope{Server: serverOf(out.URL), Repository: own.Repository, Organization: own.Organization}
		out.Labels = slices.Clone(own.Labels)
	}

	if from == nil {
		return out, workload.MissingBootstrap(template, string(p.kind))
	}

	out.Secrets, out.Servers = map[string]v1alpha1.SecretValueSource{secretToken: from.Credentials}, p.kind.serversOf(out.URL)

	if client := template.Spec.Bootstrap.Config.HTTPClient; client != nil {
		out.Timeout = time.Duration(client.TimeoutSeconds) * time.Second
	}

	if own == nil || out.Scope.Server == "" {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"reach %s for template %s: set the url of the instance, and a repository or an organization, in the pool's workload.config.%s",
			p.kind, template.Name, string(p.kind))
	}

	return out, nil
}

func (k kind) settingsOf(load v1alpha1.Workload) *v1alpha1.GiteaConfig {
	switch {
	case load.Config == nil:
		return nil
	case k == kindForgejo:
		return load.Config.Forgejo
	default:
		return load.Config.Gitea
	}
}

func (k kind) bootstrapOf(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.GiteaBootstrap {
	switch {
	case template == nil || template.Spec.Bootstrap.Config == nil:
		return nil
	case k == kindForgejo:
		return template.Spec.Bootstrap.Config.Forgejo
	default:
		return template.Spec.Bootstrap.Config.Gitea
	}
}

// program gives the runner's settings with their defaults.
func (k kind) program(from *v1alpha1.GiteaBootstrap) guest.Runner {
	out := guest.Runner{Program: "/usr/bin/act_runner", WorkDir: "/tmp/runner-work", OS: "linux", Arch: "amd64"}
	if k == kindForgejo {
		out.Program = "/usr/bin/forgejo-runner"
	}

	if from != nil {
		out.Program, out.WorkDir = cmp.Or(from.Program, out.Program), cmp.Or(from.WorkDir, out.WorkDir)
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

// Fit goes by the servers' rule: a runner takes the jobs of its repository, of its
// organisation's repositories or of its instance whose labels it has all of, to the letter
// (ActionRunner.CanMatchLabels in Gitea, ActionRunJob.ItRunsOn in Forgejo).
func (Platform) Fit(runner workload.RunnerSpec, job workload.Job) workload.Fit {
	fit := workload.Fit{Covers: covers(runner.Scope, job)}
	if !fit.Covers {
		return fit
	}

	fit.Missing = slices.DeleteFunc(slices.Clone(job.Labels), func(label string) bool {
		return slices.Contains(runner.Labels, label)
	})
	fit.Takes = len(fit.Missing) == 0

	return fit
}

// covers tells whether runners of a scope are offered the job, whatever its labels. Names
// that differ in case alone are the same to the servers.
func covers(scope workload.Scope, job workload.Job) bool {
	owner, _, _ := strings.Cut(job.Repository, "/")

	switch {
	case scope.Server == "" || !sameServer(scope.Server, job.URL):
		return false
	case scope.Repository != "":
		return strings.EqualFold(scope.Repository, job.Repository)
	case scope.Organization != "":
		return strings.EqualFold(scope.Organization, cmp.Or(job.Organization, owner))
	default:
		return true
	}
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
func (p Platform) Open(config workload.Config) (workload.Provider, error) {
	if p.kind.bootstrapOf(config.Template) == nil {
		return nil, workload.MissingBootstrap(config.Template, string(p.kind))
	}

	out, err := newProvider(p.kind, Config{
		URL: config.Runner.URL, Repository: config.Runner.Scope.Repository, Organization: config.Runner.Scope.Organization,
		Token: config.Secrets[secretToken], Timeout: config.Runner.Timeout, Transport: config.Transport, Network: config.Network,
	}, config.Time())
	if err != nil {
		return nil, err
	}

	return out, nil
}
