// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// platform is what the demo needs to know of a CI platform: how its simulator is started,
// and what its users would apply.
type platform struct {
	// name of the flag's value, of forgesim's command and of the webhooks' path.
	name string
	// title for people.
	title string
	// token begins the credential that is made for the run; empty where there is none.
	token string
	// export is the variable in which forgesim tells the URL of the platform's API.
	export string
	// flags of forgesim's command; tokenFile holds the credential.
	flags func(tokenFile string) []string
	// loses says that forgesim can fail the jobs of machines that crash sooner than the
	// platform does.
	loses bool
	// labels that jobs ask for.
	labels []string
	// bootstrap are the template's settings; workload are a pool's, whose runners have
	// the labels.
	bootstrap func(setting) *v1alpha1.BootstrapConfig
	workload  func(s setting, labels []string) v1alpha1.Workload
}

// platforms are those that the demo can simulate, the default one first.
func platforms() []platform {
	return []platform{
		{
			name: "github", title: "GitHub", token: "ghp_", export: "GITHUB_API_URL",
			flags:  func(file string) []string { return []string{"--repo", repository, "--pat-file", file} },
			loses:  true,
			labels: []string{"self-hosted", "linux", "hyperfleet"},
			bootstrap: func(s setting) *v1alpha1.BootstrapConfig {
				return &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
					Credentials: secretKey(secretForge, keyToken), APIURL: s.forgeURL, Registration: v1alpha1.RegistrationJIT,
				}}
			},
			workload: func(_ setting, labels []string) v1alpha1.Workload {
				return v1alpha1.Workload{
					Type: v1alpha1.WorkloadGitHubActions,
					Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{
						Repository: repository, Labels: labels,
					}},
				}
			},
		},
		{
			name: "gitlab", title: "GitLab", token: "glpat-", export: "GITLAB_URL",
			flags:  func(file string) []string { return []string{"--project", repository, "--token-file", file} },
			loses:  true,
			labels: []string{"linux", "hyperfleet"},
			bootstrap: func(setting) *v1alpha1.BootstrapConfig {
				return &v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{Credentials: *secretKey(secretForge, keyToken)}}
			},
			workload: func(s setting, labels []string) v1alpha1.Workload {
				return v1alpha1.Workload{
					Type: v1alpha1.WorkloadGitLabCI,
					Config: &v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{
						URL: s.forgeURL, ProjectID: repository, Tags: labels,
					}},
				}
			},
		},
		{
			name: "buildkite", title: "Buildkite", token: "bkct_", export: "BUILDKITE_AGENT_ENDPOINT",
			flags: func(file string) []string {
				return []string{"--organization", organization, "--queue", queue, "--token-file", file}
			},
			labels: []string{"queue=" + queue, "os=linux"},
			bootstrap: func(s setting) *v1alpha1.BootstrapConfig {
				return &v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{
					Credentials: *secretKey(secretForge, keyToken), Endpoint: s.forgeURL,
				}}
			},
			workload: func(_ setting, labels []string) v1alpha1.Workload {
				return v1alpha1.Workload{
					Type: v1alpha1.WorkloadBuildkite,
					Config: &v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{
						Organization: organization, Queue: queue, Tags: labels[1:],
					}},
				}
			},
		},
		gitea("forgejo", "Forgejo", v1alpha1.WorkloadForgejoActions),
		gitea("gitea", "Gitea", v1alpha1.WorkloadGiteaActions),
		{
			name: "generic", title: "webhook", export: "FORGESIM_JOBS_URL",
			flags:     func(string) []string { return []string{"--source", repository} },
			labels:    []string{"linux"},
			bootstrap: func(setting) *v1alpha1.BootstrapConfig { return nil },
			workload: func(_ setting, labels []string) v1alpha1.Workload {
				return v1alpha1.Workload{
					Type: v1alpha1.WorkloadGeneric,
					Config: &v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
						Source: repository, Labels: labels, Command: []string{"/usr/bin/generic-job"},
					}},
				}
			},
		},
	}
}

// gitea is Gitea or Forgejo, whose settings are of the same form.
func gitea(name, title, workload string) platform {
	return platform{
		name: name, title: title, export: strings.ToUpper(name) + "_URL", loses: true,
		flags:  func(file string) []string { return []string{"--repo", repository, "--token-file", file} },
		labels: []string{"linux", "hyperfleet"},
		bootstrap: func(setting) *v1alpha1.BootstrapConfig {
			settings := &v1alpha1.GiteaBootstrap{Credentials: *secretKey(secretForge, keyToken)}
			if name == "forgejo" {
				return &v1alpha1.BootstrapConfig{Forgejo: settings}
			}

			return &v1alpha1.BootstrapConfig{Gitea: settings}
		},
		workload: func(s setting, labels []string) v1alpha1.Workload {
			settings := &v1alpha1.GiteaConfig{URL: s.forgeURL, Repository: repository, Labels: labels}
			if name == "forgejo" {
				return v1alpha1.Workload{Type: workload, Config: &v1alpha1.WorkloadConfig{Forgejo: settings}}
			}

			return v1alpha1.Workload{Type: workload, Config: &v1alpha1.WorkloadConfig{Gitea: settings}}
		},
	}
}

// platformNamed gives the platform of that name, and false if there is none.
func platformNamed(name string) (platform, bool) {
	for _, p := range platforms() {
		if p.name == name {
			return p, true
		}
	}

	return platform{}, false
}

func platformNames() string {
	names := make([]string, 0, len(platforms()))
	for _, p := range platforms() {
		names = append(names, p.name)
	}

	return strings.Join(names, ", ")
}
