// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

func TestPlatformRunner(t *testing.T) {
	t.Parallel()

	credentials := v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "gitlab", Key: "token"}}
	template := func(edit func(*v1alpha1.GitLabBootstrap)) *v1alpha1.HypervisorMachineTemplate {
		from := &v1alpha1.GitLabBootstrap{Credentials: credentials}
		if edit != nil {
			edit(from)
		}

		out := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"}}
		out.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitLab: from, HTTPClient: &v1alpha1.HTTPClient{TimeoutSeconds: 7}}

		return out
	}
	pool := func(g *v1alpha1.GitLabCIConfig) v1alpha1.Workload {
		return v1alpha1.Workload{Type: v1alpha1.WorkloadGitLabCI, Config: &v1alpha1.WorkloadConfig{GitLab: g}}
	}
	spec := func(edit func(*workload.RunnerSpec)) workload.RunnerSpec {
		out := workload.RunnerSpec{
			Platform: v1alpha1.WorkloadGitLabCI, URL: "https://gitlab.example.com", Scope: workload.Scope{Server: "gitlab.example.com"},
			Registration: v1alpha1.RegistrationToken, Timeout: 7 * time.Second,
			Program: guest.Runner{Program: "/usr/bin/gitlab-runner", WorkDir: "/tmp/runner-work", OS: "linux", Arch: "amd64"},
			Secrets: map[string]v1alpha1.SecretValueSource{"token": credentials},
			Servers: []string{"gitlab.example.com"},
		}
		edit(&out)

		return out
	}

	cases := map[string]struct {
		template *v1alpha1.HypervisorMachineTemplate
		load     v1alpha1.Workload
		want     workload.RunnerSpec
		reason   string
	}{
		"a project": {
			template(nil), pool(&v1alpha1.GitLabCIConfig{
				URL: "https://GitLab.example.com/", ProjectID: "/a/b/c", Tags: []string{"x", " x", "X"}, RunUntagged: true, Description: "d",
			}),
			spec(func(s *workload.RunnerSpec) {
				s.URL, s.Scope.Repository, s.Labels = "https://GitLab.example.com", "a/b/c", []string{"x", "X"}
				s.CanRunUntagged, s.Description = true, "d"
			}), "",
		},
		"a group below a path, its own program": {
			template(func(g *v1alpha1.GitLabBootstrap) { g.Program, g.WorkDir = "/opt/gitlab-runner", "/work" }),
			pool(&v1alpha1.GitLabCIConfig{URL: "https://example.com:8443/gitlab/", GroupID: "17"}),
			spec(func(s *workload.RunnerSpec) {
				s.URL, s.Scope = "https://example.com:8443/gitlab", workload.Scope{Server: "example.com:8443/gitlab", Organization: "17"}
				s.Program.Program, s.Program.WorkDir = "/opt/gitlab-runner", "/work"
				s.Servers = []string{"example.com:8443"}
			}), "",
		},
		"an instance": {
			template(nil), pool(&v1alpha1.GitLabCIConfig{URL: "https://gitlab.example.com"}), spec(func(*workload.RunnerSpec) {}), "",
		},
		"the template alone has no scope": {
			template(nil), v1alpha1.Workload{Type: v1alpha1.WorkloadGitLabCI},
			spec(func(s *workload.RunnerSpec) { s.URL, s.Scope, s.Servers = "", workload.Scope{}, nil }), workload.ReasonScopeMissing,
		},
		"no template settings: the settings of the pool are reported": {
			&v1alpha1.HypervisorMachineTemplate{}, pool(&v1alpha1.GitLabCIConfig{URL: "https://gitlab.example.com", GroupID: "g"}),
			spec(func(s *workload.RunnerSpec) { s.Scope.Organization, s.Secrets, s.Servers, s.Timeout = "g", nil, nil, 0 }), workload.ReasonBootstrapIncomplete,
		},
		"no template at all": {
			nil, pool(&v1alpha1.GitLabCIConfig{URL: "https://gitlab.example.com", GroupID: "g"}),
			spec(func(s *workload.RunnerSpec) { s.Scope.Organization, s.Secrets, s.Servers, s.Timeout = "g", nil, nil, 0 }), workload.ReasonBootstrapIncomplete,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := gitlab.Platform{}.ResolveRunner(tc.template, tc.load)
			if reason := errclass.ReasonOf(err, ""); reason != tc.reason || err != nil && errclass.ClassOf(err) != errclass.Configuration {
				t.Fatalf("error %v, want reason %q", err, tc.reason)
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}

	if got := (gitlab.Platform{}).Traits().Slug; got != "gitlab" {
		t.Errorf("Slug = %q", got)
	}

	_, err := gitlab.Platform{}.Open(workload.Config{})
	if errclass.ReasonOf(err, "") != workload.ReasonBootstrapIncomplete {
		t.Errorf("Open without a template: %v", err)
	}
}

func TestFit(t *testing.T) {
	t.Parallel()

	const link = "https://gitlab.example.com/a/b/app/-/jobs/1"

	scope := func(project, group string) workload.Scope {
		return workload.Scope{Server: "gitlab.example.com", Repository: project, Organization: group}
	}

	cases := map[string]struct {
		scope    workload.Scope
		tags     []string
		untagged bool
		job      workload.Job
		want     workload.JobMatch
	}{
		"the project's own": {scope: scope("a/b/app", ""), tags: []string{"x", "y"}, job: workload.Job{Repository: "A/b/App", URL: link, Labels: []string{"y"}}, want: workload.JobMatch{Matched: true, InScope: true}},
		"another project":   {scope: scope("a/b/app2", ""), tags: []string{"y"}, job: workload.Job{Repository: "a/b/app", URL: link, Labels: []string{"y"}}},
		"a missing tag, case-sensitive": {
			scope: scope("a/b/app", ""), tags: []string{"x", "Y"}, job: workload.Job{Repository: "a/b/app", Labels: []string{"x", "y"}},
			want: workload.JobMatch{InScope: true, MissingLabels: []string{"y"}},
		},
		"in the group":                    {scope: scope("", "a/b"), tags: []string{"x"}, job: workload.Job{Repository: "a/b/app", URL: link, Labels: []string{"x"}}, want: workload.JobMatch{Matched: true, InScope: true}},
		"in a subgroup":                   {scope: scope("", "A"), tags: []string{"x"}, job: workload.Job{Repository: "a/b/app", Labels: []string{"x"}}, want: workload.JobMatch{Matched: true, InScope: true}},
		"a group whose name begins so":    {scope: scope("", "a/b"), tags: []string{"x"}, job: workload.Job{Repository: "a/bc/app", Labels: []string{"x"}}},
		"a project with the group's name": {scope: scope("", "a/b"), tags: []string{"x"}, job: workload.Job{Repository: "a/b", Labels: []string{"x"}}},
		"an id covers everything":         {scope: scope("17", ""), tags: []string{"x"}, job: workload.Job{Repository: "a/b/app", Labels: []string{"x"}}, want: workload.JobMatch{Matched: true, InScope: true}},
		"a group's id, too":               {scope: scope("", "17"), tags: []string{"x"}, job: workload.Job{Repository: "a/b/app", Labels: []string{"x"}}, want: workload.JobMatch{Matched: true, InScope: true}},
		"an instance":                     {scope: scope("", ""), tags: []string{"x"}, job: workload.Job{Repository: "a/b/app", URL: link, Labels: []string{"x"}}, want: workload.JobMatch{Matched: true, InScope: true}},
		"another instance": {
			scope: workload.Scope{Server: "gitlab.example.org"}, tags: []string{"x"}, job: workload.Job{Repository: "a/b/app", URL: link, Labels: []string{"x"}},
		},
		"below the same path": {
			scope: workload.Scope{Server: "example.com/gitlab"}, untagged: true,
			job: workload.Job{Repository: "a/b", URL: "https://Example.com/gitlab/a/b/-/jobs/1"}, want: workload.JobMatch{Matched: true, InScope: true},
		},
		"below another path": {
			scope: workload.Scope{Server: "example.com/gitlab"}, untagged: true, job: workload.Job{Repository: "a/b", URL: "https://example.com/a/b/-/jobs/1"},
		},
		"no server":          {untagged: true, job: workload.Job{Repository: "a/b"}},
		"untagged, accepted": {scope: scope("", "a"), untagged: true, job: workload.Job{Repository: "a/b"}, want: workload.JobMatch{Matched: true, InScope: true}},
		"untagged, not accepted": {
			scope: scope("", "a"), tags: []string{"x"}, job: workload.Job{Repository: "a/b"},
			want: workload.JobMatch{InScope: true, Message: "the job has no tags: set runUntagged in the pool's workload.config.gitlab, or add tags to the job"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := gitlab.Platform{}.MatchJob(workload.RunnerSpec{Scope: tc.scope, Labels: tc.tags, CanRunUntagged: tc.untagged}, tc.job)
			if len(got.MissingLabels) == 0 {
				got.MissingLabels = nil
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestDescription(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]struct {
		name  string
		marks []string
	}{
		gitlab.Describe("build-1", []string{"x", mark}): {"build-1", []string{mark}},
		gitlab.Describe("build-1", []string{"x"}):       {"build-1", nil},
		"shared-runners-manager-6.gitlab.com":           {"shared-runners-manager-6.gitlab.com", nil},
		"of the team (Berlin)":                          {"of the team (Berlin)", nil},
		"(hf-op-1)":                                     {"(hf-op-1)", nil},
		"of the team (hf-op-1) ":                        {"of the team (hf-op-1) ", nil},
		"":                                              {"", nil},
	} {
		name, marks := gitlab.ReadDescription(text)
		if name != want.name || !cmp.Equal(marks, want.marks) {
			t.Errorf("%q: %q %v, want %q %v", text, name, marks, want.name, want.marks)
		}
	}
}
