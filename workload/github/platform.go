// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Platform is GitHub Actions. The zero value is ready; each of its providers keeps to
// GitHub's limits by itself.
type Platform struct {
	Webhooks

	limits *limits
}

// NewPlatform makes a Platform whose providers share, by credential, what GitHub allows.
func NewPlatform() Platform { return Platform{limits: &limits{}} }

var _ workload.Platform = Platform{}

// Names of the secrets that Open takes.
const (
	secretToken        = "token"
	secretAppID        = "app.id"
	secretAppKey       = "app.privateKey"
	secretInstallation = "app.installationId"
)

// Traits are GitHub's.
func (Platform) Traits() workload.Traits {
	return workload.Traits{
		Slug: "github", JobPrefix: "gh",
		Servers:    []string{"api.github.com"},
		Hosted:     HostedLabels,
		Operation:  Operation,
		Configured: func(config *v1alpha1.BootstrapConfig) bool { return config.GitHub != nil },
	}
}

// Runner merges a template's and a workload's settings. A repository takes precedence
// over an organisation, and that over an enterprise.
func (Platform) Runner(template *v1alpha1.HypervisorMachineTemplate, load v1alpha1.Workload) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{Platform: v1alpha1.WorkloadGitHubActions, Registration: v1alpha1.RegistrationJIT}
	own := settingsOf(load)
	from := bootstrapOf(template)

	var labels []string
	if own != nil {
		labels, out.Group, out.Name, out.Queue = own.Labels, own.RunnerGroup, own.RunnerName, own.ScaleSet
	}

	out.Labels = RunnerLabels(labels)
	out.Scope = ScopeOf(own, from)
	out.Program = program(from)

	if from == nil {
		return out, workload.MissingBootstrap(template, "github")
	}

	if from.Registration != "" {
		out.Registration = from.Registration
	}

	if client := template.Spec.Bootstrap.Config.HTTPClient; client != nil {
		out.Timeout = time.Duration(client.TimeoutSeconds) * time.Second
	}

	out.Secrets, out.Servers = secretsOf(from), place(from, out.Scope).servers()

	if out.Scope == (workload.Scope{}) {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"reach GitHub for template %s: name a repository (owner and repository), an organization or an enterprise, "+
				"in the template's bootstrap.config.github or the pool's workload.config.github", template.Name)
	}

	return out, nil
}

func settingsOf(load v1alpha1.Workload) *v1alpha1.GitHubActionsConfig {
	if load.Config == nil {
		return nil
	}

	return load.Config.GitHub
}

func bootstrapOf(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.GitHubBootstrap {
	if template == nil || template.Spec.Bootstrap.Config == nil {
		return nil
	}

	return template.Spec.Bootstrap.Config.GitHub
}

// program gives the runner's settings with the defaults that the API server would set.
func program(from *v1alpha1.GitHubBootstrap) guest.Runner {
	out := guest.Runner{
		InstallPath: "/opt/actions-runner", WorkDir: "/tmp/runner-work",
		ConfigScript: "config.sh", RunScript: "run.sh", OS: "linux", Arch: "x64",
	}
	if from == nil || from.Runner == nil {
		return out
	}

	out.DownloadURL, out.DownloadSHA256 = from.Runner.DownloadURL, from.Runner.DownloadSHA256

	for to, value := range map[*string]string{
		&out.InstallPath: from.Runner.InstallPath, &out.WorkDir: from.Runner.WorkDir,
		&out.ConfigScript: from.Runner.ConfigScript, &out.RunScript: from.Runner.RunScript,
		&out.OS: from.Runner.OS, &out.Arch: from.Runner.Arch,
	} {
		if value != "" {
			*to = value
		}
	}

	return out
}

func secretsOf(from *v1alpha1.GitHubBootstrap) map[string]v1alpha1.SecretValueSource {
	out := map[string]v1alpha1.SecretValueSource{}
	if from.Credentials != nil {
		out[secretToken] = *from.Credentials
	}

	if from.App != nil {
		out[secretAppID], out[secretAppKey] = from.App.AppID, from.App.PrivateKey
		out[secretInstallation] = from.App.InstallationID
	}

	return out
}

// Fit goes by GitHub's rules: a runner takes the jobs of its scope whose labels it has
// all of, without regard to case; a job without labels is no self-hosted runner's. The
// jobs of a runner scale set come by its own stream and go to its own runners only.
func (Platform) Fit(runner workload.RunnerSpec, job workload.Job) workload.Fit {
	fit := workload.Fit{Covers: covers(runner.Scope, workload.Scope{Repository: job.Repository, Organization: job.Organization})}

	switch {
	case !fit.Covers:
		return fit
	case runner.Queue != job.Queue:
		fit.Why = "the jobs of runner scale set " + cmp.Or(runner.Queue, job.Queue) + " go to its own runners only"

		return fit
	case runner.Queue != "":
		fit.Takes = true

		return fit
	}

	fit.Missing = slices.DeleteFunc(slices.Clone(job.Labels), func(label string) bool {
		return slices.ContainsFunc(runner.Labels, func(have string) bool { return strings.EqualFold(have, label) })
	})
	fit.Takes = len(job.Labels) > 0 && len(fit.Missing) == 0

	if len(job.Labels) == 0 {
		fit.Why = "the job asks for no label, so no runner is given it: set runs-on in its workflow"
	}

	return fit
}

// covers tells whether runners of a scope are offered the jobs of another. GitHub writes
// owners and repositories without regard to case. An organisation's jobs are known by
// their repository's owner too: users and organisations share one set of names. Which
// organisations an enterprise holds no webhook says; its secret tells that it is one.
func covers(scope, of workload.Scope) bool {
	switch {
	case scope.Repository != "":
		return strings.EqualFold(scope.Repository, of.Repository)
	case scope.Organization != "":
		owner, _, _ := strings.Cut(of.Repository, "/")

		return strings.EqualFold(scope.Organization, of.Organization) || strings.EqualFold(scope.Organization, owner)
	default:
		return scope.Enterprise != ""
	}
}

// Open makes the provider of the runner's scope.
func (p Platform) Open(config workload.Config) (workload.Provider, error) {
	settings, err := settings(config)
	if err != nil {
		return nil, err
	}

	return open(Config{
		Settings:  settings,
		Timeout:   config.Runner.Timeout,
		Transport: config.Transport,
		Network:   config.Network,
		limits:    p.limits,
	}, config.Time())
}

// place is what of the settings says where calls go.
func place(from *v1alpha1.GitHubBootstrap, scope workload.Scope) *Settings {
	out := &Settings{Organization: scope.Organization, Enterprise: scope.Enterprise, APIURL: from.APIURL}
	out.Owner, out.Repository, _ = strings.Cut(scope.Repository, "/")

	if from.RegistrationURLs != nil {
		out.RegistrationURLs = *from.RegistrationURLs
	}

	if from.RunnerURLs != nil {
		out.RunnerURLs = *from.RunnerURLs
	}

	return out
}

func settings(config workload.Config) (*Settings, error) {
	from := bootstrapOf(config.Template)
	if from == nil {
		return nil, workload.MissingBootstrap(config.Template, "github")
	}

	out := place(from, config.Runner.Scope)
	out.RunnerGroup, out.ScaleSet = config.Runner.Group, config.Runner.Queue
	out.Token = strings.TrimSpace(config.Secrets[secretToken])

	if from.App == nil {
		return out, nil
	}

	number, err := strconv.ParseInt(strings.TrimSpace(config.Secrets[secretInstallation]), 10, 64)
	if err != nil {
		return nil, errclass.New(errclass.Configuration, "InstallationIDInvalid",
			"read installationId from secret %s: it must be a number, the last part of the installation's URL",
			from.App.InstallationID.SecretKeyRef.Name)
	}

	out.App = &App{
		AppID: strings.TrimSpace(config.Secrets[secretAppID]), PrivateKey: []byte(config.Secrets[secretAppKey]),
		InstallationID: number,
	}

	return out, nil
}
