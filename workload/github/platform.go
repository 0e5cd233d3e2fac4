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

// Platform implements workload.Platform for GitHub Actions. The zero value is ready to use. Each
// provider of a zero Platform has its own rate limit budget.
type Platform struct {
	Webhooks

	budgets *budgetRegistry
}

// NewPlatform returns a Platform whose providers share one rate limit budget per credential.
func NewPlatform() Platform { return Platform{budgets: &budgetRegistry{}} }

var _ workload.Platform = Platform{}

// Keys of the secrets that Open needs.
const (
	secretToken        = "token"
	secretAppID        = "app.id"
	secretAppKey       = "app.privateKey"
	secretInstallation = "app.installationId"
)

// Traits returns the traits of GitHub.
func (Platform) Traits() workload.Traits {
	return workload.Traits{
		Slug: "github", JobPrefix: "gh",
		PublicServers: []string{"api.github.com"},
		IsHostedJob:   IsHostedJob,
		OperationName: OperationName,
		IsConfigured:  func(config *v1alpha1.BootstrapConfig) bool { return config.GitHub != nil },
	}
}

// ResolveRunner merges the settings of a template and a workload. A repository takes precedence
// over an organization, and an organization over an enterprise.
func (Platform) ResolveRunner(
	template *v1alpha1.HypervisorMachineTemplate, spec v1alpha1.Workload,
) (workload.RunnerSpec, error) {
	out := workload.RunnerSpec{Platform: v1alpha1.WorkloadGitHubActions, Registration: v1alpha1.RegistrationJIT}
	config := findConfig(spec)
	bootstrap := findBootstrap(template)

	var labels []string
	if config != nil {
		labels, out.Group, out.Queue = config.Labels, config.RunnerGroup, config.ScaleSet
	}

	out.Labels, out.DefaultLabels = MergeLabels(labels), DefaultLabels()
	out.Scope = ResolveScope(config, bootstrap)
	out.Program = buildProgram(template)

	if bootstrap == nil {
		return out, workload.NewMissingBootstrapError(template, "github")
	}

	if bootstrap.Registration != "" {
		out.Registration = bootstrap.Registration
	}

	if client := template.Spec.Bootstrap.Config.HTTPClient; client != nil {
		out.Timeout = time.Duration(client.TimeoutSeconds) * time.Second
	}

	out.Secrets, out.Servers = listSecrets(bootstrap), newSettings(bootstrap, out.Scope).listServers()

	if out.Scope == (workload.Scope{}) {
		return out, errclass.New(errclass.Configuration, workload.ReasonScopeMissing,
			"configure GitHub for template %s: set a repository (owner and repository), an organization or an enterprise, "+
				"in the template's bootstrap.config.github or in workload.config.github", template.Name)
	}

	return out, nil
}

func findConfig(spec v1alpha1.Workload) *v1alpha1.GitHubActionsConfig {
	if spec.Config == nil {
		return nil
	}

	return spec.Config.GitHub
}

func findBootstrap(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.GitHubBootstrap {
	if template == nil || template.Spec.Bootstrap.Config == nil {
		return nil
	}

	return template.Spec.Bootstrap.Config.GitHub
}

// osWindows is GitHub's name of Windows.
const osWindows = "win"

// buildProgram returns the runner's settings, with the same defaults that the API server sets, and the newest release
// of the runner that the template's status names. The template may be nil.
func buildProgram(template *v1alpha1.HypervisorMachineTemplate) guest.Runner {
	out := guest.Runner{
		InstallPath: "/opt/actions-runner", WorkDir: "/tmp/runner-work",
		ConfigScript: "config.sh", RunScript: "run.sh", OS: "linux", Arch: "x64",
	}

	if template != nil && template.IsWindows() {
		out.OS = osWindows
	}

	bootstrap := findBootstrap(template)
	if bootstrap == nil || bootstrap.Runner == nil {
		return out
	}

	out.DownloadURL, out.DownloadSHA256 = bootstrap.Runner.DownloadURL, bootstrap.Runner.DownloadSHA256

	for field, value := range map[*string]string{
		&out.InstallPath: bootstrap.Runner.InstallPath, &out.WorkDir: bootstrap.Runner.WorkDir,
		&out.ConfigScript: bootstrap.Runner.ConfigScript, &out.RunScript: bootstrap.Runner.RunScript,
		&out.Arch: bootstrap.Runner.Arch,
	} {
		if value != "" {
			*field = value
		}
	}

	newest := template.Status.Runner

	switch version := bootstrap.Runner.Version; {
	case version == v1alpha1.RunnerVersionLatest && newest != nil:
		out.Version, out.DownloadSHA256 = newest.Version, newest.SHA256
		out.DownloadURL = cmp.Or(out.DownloadURL, newest.DownloadURL)
	case version != v1alpha1.RunnerVersionLatest && version != v1alpha1.RunnerVersionFromImage:
		out.Version = version
	}

	out.DownloadURL = strings.NewReplacer("{os}", out.OS, "{arch}", out.Arch, "{version}", out.Version).Replace(out.DownloadURL)

	return out
}

func listSecrets(bootstrap *v1alpha1.GitHubBootstrap) map[string]v1alpha1.SecretValueSource {
	out := map[string]v1alpha1.SecretValueSource{}
	if bootstrap.Credentials != nil {
		out[secretToken] = *bootstrap.Credentials
	}

	if bootstrap.App != nil {
		out[secretAppID], out[secretAppKey] = bootstrap.App.AppID, bootstrap.App.PrivateKey
		out[secretInstallation] = bootstrap.App.InstallationID
	}

	return out
}

// MatchJob applies GitHub's rules: a runner takes a job of its scope if it has all of the job's
// labels. Labels are case-insensitive. A job without labels never runs on a self-hosted runner. If
// the runner or the job belongs to a runner scale set, the other one must belong to the same set, and
// the labels do not matter. Queue is the name of the scale set.
func (Platform) MatchJob(runner workload.RunnerSpec, job workload.Job) workload.JobMatch {
	jobScope := workload.Scope{Repository: job.Repository, Organization: job.Organization, Enterprise: job.Enterprise}
	match := workload.JobMatch{InScope: isInScope(runner.Scope, jobScope)}

	switch {
	case !match.InScope:
		return match
	case runner.Queue != job.Queue && runner.Queue != "":
		match.Message = "the runners belong to runner scale set " + runner.Queue + ", and run only the jobs of this set"

		return match
	case runner.Queue != job.Queue:
		match.Message = "the job belongs to runner scale set " + job.Queue + ", and runs only on the runners of this set"

		return match
	case runner.Queue != "":
		match.Matched = true

		return match
	}

	match.MissingLabels = slices.DeleteFunc(slices.Clone(job.Labels), func(label string) bool {
		return slices.ContainsFunc(runner.Labels, func(runnerLabel string) bool { return strings.EqualFold(runnerLabel, label) })
	})
	match.Matched = len(job.Labels) > 0 && len(match.MissingLabels) == 0

	if len(job.Labels) == 0 {
		match.Message = "the job requests no labels, so no runner takes it: set runs-on in the job's workflow"
	}

	return match
}

// isInScope reports whether runners of a scope take the jobs of another scope. GitHub's owners and
// repositories are case-insensitive. A job belongs to the organization that owns its repository. Another
// organization in a webhook does not count, because the webhook's secret can be that of the repository. The
// enterprise of a job is that of the pool that reported it, for the same reason.
func isInScope(scope, jobScope workload.Scope) bool {
	switch {
	case scope.Repository != "":
		return strings.EqualFold(scope.Repository, jobScope.Repository)
	case scope.Organization != "":
		owner, _, _ := strings.Cut(jobScope.Repository, "/")

		return strings.EqualFold(scope.Organization, cmp.Or(owner, jobScope.Organization))
	default:
		return scope.Enterprise != "" && strings.EqualFold(scope.Enterprise, jobScope.Enterprise)
	}
}

// Open creates the provider of the runner's scope.
func (p Platform) Open(config workload.Config) (workload.Provider, error) {
	settings, err := resolveSettings(config)
	if err != nil {
		return nil, err
	}

	return openProvider(Config{
		Settings:      settings,
		Timeout:       config.Runner.Timeout,
		WrapTransport: config.WrapTransport,
		BaseTransport: config.BaseTransport,
		budgets:       p.budgets,
	}, config.ClockOrReal())
}

// newSettings returns the settings that determine the scope and the URLs, without credentials.
func newSettings(bootstrap *v1alpha1.GitHubBootstrap, scope workload.Scope) *Settings {
	out := &Settings{Organization: scope.Organization, Enterprise: scope.Enterprise, APIURL: bootstrap.APIURL}
	out.Owner, out.Repository, _ = strings.Cut(scope.Repository, "/")

	if bootstrap.RegistrationURLs != nil {
		out.RegistrationURLs = *bootstrap.RegistrationURLs
	}

	if bootstrap.RunnerURLs != nil {
		out.RunnerURLs = *bootstrap.RunnerURLs
	}

	return out
}

// resolveSettings returns the settings of the template with the token or the App credentials of the
// secrets.
func resolveSettings(config workload.Config) (*Settings, error) {
	bootstrap := findBootstrap(config.Template)
	if bootstrap == nil {
		return nil, workload.NewMissingBootstrapError(config.Template, "github")
	}

	out := newSettings(bootstrap, config.Runner.Scope)
	out.RunnerGroup, out.ScaleSet = config.Runner.Group, config.Runner.Queue
	out.Token = strings.TrimSpace(config.Secrets[secretToken])

	if bootstrap.App == nil {
		return out, nil
	}

	installationID, err := strconv.ParseInt(strings.TrimSpace(config.Secrets[secretInstallation]), 10, 64)
	if err != nil {
		return nil, errclass.New(errclass.Configuration, "InstallationIDInvalid",
			"parse installationId of Secret %s: it must be a number, the last part of the installation's URL",
			bootstrap.App.InstallationID.SecretKeyRef.Name)
	}

	out.App = &App{
		AppID: strings.TrimSpace(config.Secrets[secretAppID]), PrivateKey: []byte(config.Secrets[secretAppKey]),
		InstallationID: installationID,
	}

	return out, nil
}
