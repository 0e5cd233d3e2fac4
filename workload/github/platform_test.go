// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// scoped is the part of a workload.RunnerSpec that settings are merged for.
type scoped struct {
	scope  workload.Scope
	labels []string
	group  string
}

func TestPlatformRunner(t *testing.T) {
	t.Parallel()

	template := func(g *v1alpha1.GitHubBootstrap) *v1alpha1.HypervisorMachineTemplate {
		out := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
		if g != nil {
			out.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: g}
		}

		return out
	}
	pool := func(g *v1alpha1.GitHubActionsConfig) v1alpha1.Workload {
		return v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: g}}
	}

	cases := map[string]struct {
		template *v1alpha1.HypervisorMachineTemplate
		load     v1alpha1.Workload
		want     scoped
		reason   string
	}{
		"repository wins over organization in one place": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Repository: "r", Organization: "g"}), pool(nil),
			scoped{scope: workload.Scope{Repository: "o/r"}}, "",
		},
		"the pool's organization wins over the template's repository": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Repository: "r"}),
			pool(&v1alpha1.GitHubActionsConfig{Organization: "g", Labels: []string{"x"}, RunnerGroup: "fast"}),
			scoped{workload.Scope{Organization: "g"}, []string{"x"}, "fast"}, "",
		},
		"a pool that says nothing": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Repository: "r"}), pool(&v1alpha1.GitHubActionsConfig{}),
			scoped{scope: workload.Scope{Repository: "o/r"}}, "",
		},
		"the template's organization wins over its owner": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o", Organization: "g"}), pool(nil),
			scoped{scope: workload.Scope{Organization: "g"}}, "",
		},
		"the pool's repository wins over its organization": {
			template(&v1alpha1.GitHubBootstrap{Organization: "g"}), pool(&v1alpha1.GitHubActionsConfig{Repository: "a/b", Organization: "o"}),
			scoped{scope: workload.Scope{Repository: "a/b"}}, "",
		},
		"an owner alone is an organization": {
			template(&v1alpha1.GitHubBootstrap{Owner: "o"}), pool(nil), scoped{scope: workload.Scope{Organization: "o"}}, "",
		},
		"an enterprise is the last resort": {
			template(&v1alpha1.GitHubBootstrap{Enterprise: "corp"}), pool(nil), scoped{scope: workload.Scope{Enterprise: "corp"}}, "",
		},
		"no scope at all is named":     {template(&v1alpha1.GitHubBootstrap{}), pool(nil), scoped{}, "ScopeMissing"},
		"no credentials at all either": {template(nil), pool(nil), scoped{}, "BootstrapIncomplete"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := github.Platform{}.Runner(tc.template, tc.load)
			if reason := errclass.Reason(err, ""); reason != tc.reason {
				t.Fatalf("error %v, want reason %q", err, tc.reason)
			}

			seen := scoped{got.Scope, got.Labels[len(github.DefaultLabels()):], got.Group}
			if diff := cmp.Diff(tc.want, seen, cmpopts.EquateEmpty(), cmp.AllowUnexported(scoped{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What a template says of an enterprise reaches the provider, placeholders and all.
func TestPlatformOpensAnEnterprise(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{Enterprise: "corp"})
	template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
		Enterprise: "corp", APIURL: server.URL, Registration: v1alpha1.RegistrationToken,
		RegistrationURLs: &v1alpha1.GitHubURLs{Enterprise: server.URL + "/enterprises/{enterprise}/actions/runners/registration-token"},
		RunnerURLs:       &v1alpha1.GitHubURLs{Enterprise: server.URL + "/enterprises/{enterprise}"},
	}}
	platform := github.NewPlatform()

	runner, err := platform.Runner(template, v1alpha1.Workload{})
	if err != nil || runner.Scope != (workload.Scope{Enterprise: "corp"}) {
		t.Fatalf("Runner = %+v, %v", runner, err)
	}

	p, err := platform.Open(workload.Config{
		Runner: runner, Template: template, Secrets: map[string]string{"token": githubtest.PAT},
	})
	if err != nil {
		t.Fatal(err)
	}

	if err := p.Validate(t.Context()); err != nil {
		t.Error(err)
	}

	req := request("r")
	req.Registration = runner.Registration

	issued, err := p.Issue(t.Context(), req)
	if err != nil || issued.RegistrationURL != server.URL+"/enterprises/corp" || issued.RunnerToken == "" {
		t.Fatalf("Issue = %+v, %v", issued, err)
	}

	// The runner's own program registers there.
	dir := t.TempDir()
	if code := githubtest.StartRunner(t, dir, "config", "--unattended", "--ephemeral", "--url", issued.RegistrationURL,
		"--token", issued.RunnerToken, "--name", "r", "--labels", "x").Wait(); code != 0 {
		t.Fatalf("config ends with %d", code)
	}

	if state := server.State(); len(state.Runners) != 1 || state.Runners[0].Scope != "enterprises/corp" {
		t.Errorf("runners %+v", state.Runners)
	}
}
