// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/generic"
)

func newWorkload(config *v1alpha1.GenericConfig) v1alpha1.Workload {
	return v1alpha1.Workload{Type: v1alpha1.WorkloadGeneric, Config: &v1alpha1.WorkloadConfig{Generic: config}}
}

func TestRunner(t *testing.T) {
	t.Parallel()

	program := guest.Runner{WorkDir: "/tmp/runner-work", OS: "linux", Arch: "x64"}

	for name, tc := range map[string]struct {
		load   v1alpha1.Workload
		want   workload.RunnerSpec
		reason string
	}{
		"all": {
			newWorkload(&v1alpha1.GenericConfig{Source: "s", Labels: []string{"gpu"}, Command: []string{"make", "scan"}, WorkDir: "/srv/work"}),
			workload.RunnerSpec{
				Platform: "generic", Scope: workload.Scope{Repository: "s"}, Labels: []string{"gpu"}, NeedsJob: true,
				Command: []string{"make", "scan"}, Program: guest.Runner{WorkDir: "/srv/work", OS: "linux", Arch: "x64"},
			}, "",
		},
		"the minimum": {
			newWorkload(&v1alpha1.GenericConfig{Source: "s", Command: []string{"x"}}),
			workload.RunnerSpec{Platform: "generic", Scope: workload.Scope{Repository: "s"}, NeedsJob: true, Command: []string{"x"}, Program: program}, "",
		},
		"no config":   {v1alpha1.Workload{}, workload.RunnerSpec{Platform: "generic", NeedsJob: true, Program: program}, workload.ReasonScopeMissing},
		"no settings": {newWorkload(nil), workload.RunnerSpec{Platform: "generic", NeedsJob: true, Program: program}, workload.ReasonScopeMissing},
		"no source": {
			newWorkload(&v1alpha1.GenericConfig{Command: []string{"x"}}),
			workload.RunnerSpec{Platform: "generic", NeedsJob: true, Command: []string{"x"}, Program: program}, workload.ReasonScopeMissing,
		},
		"no command": {
			newWorkload(&v1alpha1.GenericConfig{Source: "s"}),
			workload.RunnerSpec{Platform: "generic", Scope: workload.Scope{Repository: "s"}, NeedsJob: true, Program: program}, generic.ReasonCommandMissing,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := generic.Platform{}.ResolveRunner(nil, tc.load)
			if reason := errclass.ReasonOf(err, ""); reason != tc.reason {
				t.Fatalf("error %v, want reason %q", err, tc.reason)
			}

			if err != nil && errclass.ClassOf(err) != errclass.Configuration {
				t.Errorf("class %s", errclass.ClassOf(err))
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("runner (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFit(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		source string
		labels []string
		job    workload.Job
		want   workload.JobMatch
	}{
		"no labels requested":    {"s", []string{"gpu"}, workload.Job{Repository: "s"}, workload.JobMatch{Matched: true, InScope: true}},
		"no labels at all":       {"s", nil, workload.Job{Repository: "s"}, workload.JobMatch{Matched: true, InScope: true}},
		"all of them":            {"s", []string{"GPU", "linux"}, workload.Job{Repository: "s", Labels: []string{"gpu"}}, workload.JobMatch{Matched: true, InScope: true}},
		"one is missing":         {"s", []string{"linux"}, workload.Job{Repository: "s", Labels: []string{"gpu", "Linux"}}, workload.JobMatch{InScope: true, MissingLabels: []string{"gpu"}}},
		"another source":         {"s", nil, workload.Job{Repository: "t"}, workload.JobMatch{}},
		"sources have a case":    {"s", nil, workload.Job{Repository: "S"}, workload.JobMatch{}},
		"jobs of another source": {"", nil, workload.Job{}, workload.JobMatch{}},
		"no part of a source":    {"s", nil, workload.Job{Repository: "s/t"}, workload.JobMatch{}},
		"its other labels too":   {"s", []string{"a", "b", "c"}, workload.Job{Repository: "s", Labels: []string{"c", "a"}}, workload.JobMatch{Matched: true, InScope: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := generic.Platform{}.MatchJob(workload.RunnerSpec{Scope: workload.Scope{Repository: tc.source}, Labels: tc.labels}, tc.job)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("fit (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProvider(t *testing.T) {
	t.Parallel()

	provider, err := generic.Platform{}.Open(workload.Config{})
	if err != nil {
		t.Fatal(err)
	}

	if err := provider.Validate(t.Context()); err != nil {
		t.Error(err)
	}

	job := workload.Job{ID: "7", Name: "scan all", Repository: "s", URL: "https://ci.example/7", Labels: []string{"a", "b"}}
	want := workload.Credential{JobID: "7", Env: map[string]string{
		"HYPERFLEET_JOB_ID": "7", "HYPERFLEET_JOB_NAME": "scan all", "HYPERFLEET_JOB_SOURCE": "s",
		"HYPERFLEET_JOB_URL": "https://ci.example/7", "HYPERFLEET_JOB_LABELS": "a,b",
	}}

	for range 2 { // a repeated call returns the same result
		got, err := provider.IssueCredential(t.Context(), workload.RunnerRequest{Name: "r", Job: &job})
		if err != nil {
			t.Fatal(err)
		}

		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("credential (-want +got):\n%s", diff)
		}
	}

	if _, err := provider.IssueCredential(t.Context(), workload.RunnerRequest{Name: "r"}); !workload.Is(err, workload.Rejected) {
		t.Errorf("a runner without a job: %v", err)
	}

	if _, err := provider.FindRunner(t.Context(), "r", 0); !workload.Is(err, workload.NotFound) {
		t.Errorf("find: %v", err)
	}

	if _, err := provider.GetJob(t.Context(), "s", "7"); !workload.Is(err, workload.NotFound) || errclass.ReasonOf(err, "") != "" && errclass.ReasonOf(err, "") != generic.ReasonNoPlatform {
		t.Errorf("job: %v", err)
	}

	if got, err := provider.ListRunners(t.Context(), ""); err != nil || len(got) != 0 {
		t.Errorf("runners %v, %v", got, err)
	}

	if err := provider.Deregister(t.Context(), "r"); err != nil {
		t.Error(err)
	}
}
