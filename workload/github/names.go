// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// DefaultLabels are the labels that every runner has.
func DefaultLabels() []string { return []string{"self-hosted", "hyperfleet", "ephemeral"} }

// RunnerLabels gives the labels of a runner: the default ones and those configured,
// each once. GitHub compares labels without regard to case.
func RunnerLabels(configured []string) []string {
	labels := DefaultLabels()
	seen := make(map[string]bool, len(labels)+len(configured))

	for _, label := range labels {
		seen[label] = true
	}

	for _, label := range configured {
		label = strings.TrimSpace(label)
		if key := strings.ToLower(label); label != "" && !seen[key] {
			seen[key] = true

			labels = append(labels, label)
		}
	}

	return labels
}

// ScopeOf gives the scope of a pool's runners: what the pool says if it says anything,
// else what its template says. A repository takes precedence over an organisation. A
// template with only an owner means that organisation. Either argument may be nil.
func ScopeOf(pool *v1alpha1.GitHubActionsConfig, template *v1alpha1.GitHubBootstrap) workload.Scope {
	switch {
	case pool != nil && pool.Repository != "":
		return workload.Scope{Repository: pool.Repository}
	case pool != nil && pool.Organization != "":
		return workload.Scope{Organization: pool.Organization}
	case template == nil:
		return workload.Scope{}
	case template.Repository != "" && template.Owner != "":
		return workload.Scope{Repository: template.Owner + "/" + template.Repository}
	case template.Organization != "":
		return workload.Scope{Organization: template.Organization}
	case template.Enterprise != "":
		return workload.Scope{Enterprise: template.Enterprise}
	default:
		return workload.Scope{Organization: template.Owner}
	}
}

// HostedLabels tells whether labels are those of a job for GitHub's own machines: one
// label that begins with the name of an operating system as GitHub writes it
// (https://docs.github.com/actions/reference/runners/github-hosted-runners). A
// self-hosted runner may carry such a label too.
func HostedLabels(labels []string) bool {
	if len(labels) != 1 {
		return false
	}

	label := strings.ToLower(labels[0])

	return strings.HasPrefix(label, "ubuntu-") || strings.HasPrefix(label, "windows-") || strings.HasPrefix(label, "macos-")
}
