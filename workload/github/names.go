// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// DefaultLabels returns the labels that every runner has.
func DefaultLabels() []string { return []string{"self-hosted", "hyperfleet", "ephemeral"} }

// MergeLabels returns the labels of a runner: the default labels and the configured labels, without
// duplicates. GitHub's labels are case-insensitive.
func MergeLabels(configured []string) []string {
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

// ResolveScope returns the scope of a pool's runners. The pool's scope overrides the template's. A
// repository takes precedence over an organization. If a template has only an owner, the scope is
// the organization of that name. Both arguments may be nil.
func ResolveScope(pool *v1alpha1.GitHubActionsConfig, template *v1alpha1.GitHubBootstrap) workload.Scope {
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

// IsHostedJob reports whether a job with these labels runs on GitHub's own machines: it has one
// label that begins with the name of an operating system in GitHub's form
// (https://docs.github.com/actions/reference/runners/github-hosted-runners). A self-hosted runner
// can have such a label too.
func IsHostedJob(labels []string) bool {
	if len(labels) != 1 {
		return false
	}

	label := strings.ToLower(labels[0])

	return strings.HasPrefix(label, "ubuntu-") || strings.HasPrefix(label, "windows-") || strings.HasPrefix(label, "macos-")
}
