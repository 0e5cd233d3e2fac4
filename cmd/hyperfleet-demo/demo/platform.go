// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// platform describes a CI platform: how the demo starts its simulator, and what the demo sets in the
// template and in the pools.
type platform struct {
	// name is the value of --platform, the command of forgesim, and the last part of the webhook path.
	name string
	// title is the name in the output.
	title string
	// tokenPrefix is the prefix of the credential that is generated for the run. It is empty if the
	// platform needs no prefix.
	tokenPrefix string
	// urlVariable is the exported variable with the URL of the platform's API.
	urlVariable string
	// flags returns the flags of forgesim. tokenFile has the credential.
	flags func(tokenFile string) []string
	// hasLostTimeout is true if forgesim has the flag --lost-timeout, which sets the time until a job
	// fails whose machine has crashed.
	hasLostTimeout bool
	// labels are the labels that jobs require.
	labels []string
	// bootstrap returns the bootstrap settings of the template. workload returns the workload of a pool
	// whose runners have the labels.
	bootstrap func(demoSettings) *v1alpha1.BootstrapConfig
	workload  func(s demoSettings, labels []string) v1alpha1.Workload
}

// platforms returns the CI platforms that the demo can simulate. The first one is the default.
func platforms() []platform {
	return []platform{
		{
			name: "github", title: "GitHub", tokenPrefix: "ghp_", urlVariable: "GITHUB_API_URL",
			flags:          func(file string) []string { return []string{"--repo", repository, "--pat-file", file} },
			hasLostTimeout: true,
			labels:         []string{"self-hosted", "linux", "hyperfleet"},
			bootstrap: func(s demoSettings) *v1alpha1.BootstrapConfig {
				return &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
					Credentials: secretRef(secretForge, keyToken), APIURL: s.forgeURL, Registration: v1alpha1.RegistrationJIT,
				}}
			},
			workload: func(_ demoSettings, labels []string) v1alpha1.Workload {
				return v1alpha1.Workload{
					Type: v1alpha1.WorkloadGitHubActions,
					Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{
						Repository: repository, Labels: labels,
					}},
				}
			},
		},
		{
			name: "gitlab", title: "GitLab", tokenPrefix: "glpat-", urlVariable: "GITLAB_URL",
			flags:          func(file string) []string { return []string{"--project", repository, "--token-file", file} },
			hasLostTimeout: true,
			labels:         []string{"linux", "hyperfleet"},
			bootstrap: func(demoSettings) *v1alpha1.BootstrapConfig {
				return &v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{Credentials: *secretRef(secretForge, keyToken)}}
			},
			workload: func(s demoSettings, labels []string) v1alpha1.Workload {
				return v1alpha1.Workload{
					Type: v1alpha1.WorkloadGitLabCI,
					Config: &v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{
						URL: s.forgeURL, ProjectID: repository, Tags: labels,
					}},
				}
			},
		},
		{
			name: "buildkite", title: "Buildkite", tokenPrefix: "bkct_", urlVariable: "BUILDKITE_AGENT_ENDPOINT",
			flags: func(file string) []string {
				return []string{"--organization", organization, "--queue", queue, "--token-file", file}
			},
			labels: []string{"queue=" + queue, "os=linux"},
			bootstrap: func(s demoSettings) *v1alpha1.BootstrapConfig {
				return &v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{
					Credentials: *secretRef(secretForge, keyToken), Endpoint: s.forgeURL,
				}}
			},
			workload: func(_ demoSettings, labels []string) v1alpha1.Workload {
				return v1alpha1.Workload{
					Type: v1alpha1.WorkloadBuildkite,
					Config: &v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{
						Organization: organization, Queue: queue, Tags: labels[1:],
					}},
				}
			},
		},
		newGiteaPlatform("forgejo", "Forgejo", v1alpha1.WorkloadForgejoActions),
		newGiteaPlatform("gitea", "Gitea", v1alpha1.WorkloadGiteaActions),
		{
			name: "generic", title: "webhook", urlVariable: "FORGESIM_JOBS_URL",
			flags:     func(string) []string { return []string{"--source", repository} },
			labels:    []string{"linux"},
			bootstrap: func(demoSettings) *v1alpha1.BootstrapConfig { return nil },
			workload: func(_ demoSettings, labels []string) v1alpha1.Workload {
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

// newGiteaPlatform returns the platform for Gitea or Forgejo, which have the same settings.
func newGiteaPlatform(name, title, workload string) platform {
	return platform{
		name: name, title: title, urlVariable: strings.ToUpper(name) + "_URL", hasLostTimeout: true,
		flags:  func(file string) []string { return []string{"--repo", repository, "--token-file", file} },
		labels: []string{"linux", "hyperfleet"},
		bootstrap: func(demoSettings) *v1alpha1.BootstrapConfig {
			settings := &v1alpha1.GiteaBootstrap{Credentials: *secretRef(secretForge, keyToken)}
			if name == "forgejo" {
				return &v1alpha1.BootstrapConfig{Forgejo: settings}
			}

			return &v1alpha1.BootstrapConfig{Gitea: settings}
		},
		workload: func(s demoSettings, labels []string) v1alpha1.Workload {
			settings := &v1alpha1.GiteaConfig{URL: s.forgeURL, Repository: repository, Labels: labels}
			if name == "forgejo" {
				return v1alpha1.Workload{Type: workload, Config: &v1alpha1.WorkloadConfig{Forgejo: settings}}
			}

			return v1alpha1.Workload{Type: workload, Config: &v1alpha1.WorkloadConfig{Gitea: settings}}
		},
	}
}

// findPlatform returns the platform with the name, and false if no platform has that name.
func findPlatform(name string) (platform, bool) {
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
