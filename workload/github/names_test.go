// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func TestRunnerName(t *testing.T) {
	t.Parallel()

	const uid = types.UID("12345678-9abc-def0-1234-56789abcdef0")

	for claim, want := range map[string]string{
		"pool-x7k2p":                         "pool-x7k2p-12345678",
		strings.Repeat("a", 63):              strings.Repeat("a", 55) + "-12345678",
		strings.Repeat("a", 54) + "-bcdefgh": strings.Repeat("a", 54) + "-12345678",
	} {
		if got := workload.RunnerName(claim, uid); got != want || len(got) > 64 {
			t.Errorf("RunnerName(%q) = %q, want %q", claim, got, want)
		}
	}

	if got := workload.RunnerName("claim", "ab"); got != "claim-ab" {
		t.Errorf("a short uid: %q", got)
	}

	if got := workload.RunnerName("claim", ""); got != "claim" {
		t.Errorf("no uid: %q", got)
	}
}

func TestRunnerLabels(t *testing.T) {
	t.Parallel()

	got := github.RunnerLabels([]string{"Linux", "linux", " gpu ", "Self-Hosted", "", "x64"})
	want := []string{"self-hosted", "hyperfleet", "ephemeral", "Linux", "gpu", "x64"}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("RunnerLabels (-want +got):\n%s", diff)
	}
}

func TestScopeOf(t *testing.T) {
	t.Parallel()

	template := &v1alpha1.GitHubBootstrap{Owner: "acme", Repository: "app", Organization: "acme-org"}

	tests := map[string]struct {
		pool     *v1alpha1.GitHubActionsConfig
		template *v1alpha1.GitHubBootstrap
		want     workload.Scope
	}{
		"nothing":                     {want: workload.Scope{}},
		"template's repository first": {template: template, want: workload.Scope{Repository: "acme/app"}},
		"template's organisation": {
			template: &v1alpha1.GitHubBootstrap{Owner: "acme", Organization: "acme-org"}, want: workload.Scope{Organization: "acme-org"},
		},
		"template's owner is an organisation": {
			template: &v1alpha1.GitHubBootstrap{Owner: "acme"}, want: workload.Scope{Organization: "acme"},
		},
		"pool's repository first": {
			pool:     &v1alpha1.GitHubActionsConfig{Repository: "o/r", Organization: "o"},
			template: template, want: workload.Scope{Repository: "o/r"},
		},
		"pool's organisation beats the template's repository": {
			pool: &v1alpha1.GitHubActionsConfig{Organization: "o"}, template: template, want: workload.Scope{Organization: "o"},
		},
		"a pool that says nothing": {
			pool: &v1alpha1.GitHubActionsConfig{}, template: template, want: workload.Scope{Repository: "acme/app"},
		},
	}

	for name, test := range tests {
		if got := github.ScopeOf(test.pool, test.template); got != test.want {
			t.Errorf("%s: ScopeOf = %+v, want %+v", name, got, test.want)
		}
	}
}
