// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
	"github.com/hyperfleet/hyperfleet/workload/generic"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
	"github.com/hyperfleet/hyperfleet/workload/github"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// labelPlatform is a platform with a scope that the job has.
type labelPlatform struct {
	rules  demand.Rules
	runner workload.RunnerSpec
	job    workload.Job
}

func newLabelPlatforms() map[string]labelPlatform {
	server := workload.Scope{Server: "git.example.com"}
	job := workload.Job{Repository: "acme/app", URL: "https://git.example.com/acme/app/-/jobs/1"}

	return map[string]labelPlatform{
		v1alpha1.WorkloadGitHubActions: {
			github.Platform{}, workload.RunnerSpec{Scope: workload.Scope{Repository: "acme/app"}, DefaultLabels: github.DefaultLabels()}, job,
		},
		v1alpha1.WorkloadGitLabCI:       {gitlab.Platform{}, workload.RunnerSpec{Scope: server}, job},
		v1alpha1.WorkloadForgejoActions: {gitea.Platform{}, workload.RunnerSpec{Scope: server}, job},
		v1alpha1.WorkloadGiteaActions:   {gitea.Platform{}, workload.RunnerSpec{Scope: server}, job},
		v1alpha1.WorkloadGeneric:        {generic.Platform{}, workload.RunnerSpec{Scope: workload.Scope{Repository: "acme/app"}}, job},
		v1alpha1.WorkloadBuildkite: {
			buildkite.Platform{}, workload.RunnerSpec{Scope: workload.Scope{Organization: "acme"}, Queue: "vms"},
			workload.Job{Repository: "acme/app", Queue: "vms"},
		},
	}
}

// newLabelPool returns a pool of the platform with the labels gpu=a100 and os=linux.
func (p labelPlatform) newPool(platform, labelMatch string) demand.Pool {
	runner := p.runner
	runner.Platform = platform
	runner.Labels = slices.Concat(runner.DefaultLabels, []string{"gpu=a100", "os=linux"})

	return demand.Pool{Namespace: "ns", Name: "p", Max: 9, Runner: runner, Rules: p.rules, LabelMatch: labelMatch}
}

func TestLabelMatchOfEveryPlatform(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		labels          []string
		all, exact, any bool
		extra           string
	}{
		"all of the pool's labels":          {labels: []string{"gpu=a100", "os=linux"}, all: true, exact: true, any: true},
		"one of the pool's labels":          {labels: []string{"os=linux"}, all: true, any: true},
		"one, and one of another pool":      {labels: []string{"os=linux", "team=blue"}, any: true, extra: "team=blue"},
		"all, and one of another pool":      {labels: []string{"os=linux", "gpu=a100", "team=blue"}, any: true, extra: "team=blue"},
		"only labels of other pools":        {labels: []string{"team=blue"}},
		"a label that splits the list":      {labels: []string{"os=linux", "a,b"}},
		"a label with a line break":         {labels: []string{"os=linux", "a\nb"}},
		"the label of another operator":     {labels: []string{"os=linux", "hf-op-1a2b3c4d5e"}},
		"the label of another, in capitals": {labels: []string{"os=linux", "HF-OP-1a2b3c4d5e"}},
	} {
		for platform, with := range newLabelPlatforms() {
			t.Run(name+"/"+platform, func(t *testing.T) {
				t.Parallel()

				job := with.job
				job.Platform, job.Labels = platform, tc.labels

				for labelMatch, want := range map[string]bool{
					"": tc.all, v1alpha1.LabelMatchAll: tc.all, v1alpha1.LabelMatchExact: tc.exact, v1alpha1.LabelMatchAny: tc.any,
				} {
					pools := []demand.Pool{with.newPool(platform, labelMatch)}

					pool, ok := demand.Match(job, pools)
					if ok != want {
						_, message := demand.Explain(job, pools)
						t.Errorf("labelMatch %q: matched %t, want %t: %s", labelMatch, ok, want, message)
					}

					if size, _ := pool.ParseSize(job); labelMatch == v1alpha1.LabelMatchAny && ok && size.Key() != tc.extra {
						t.Errorf("the runner also gets %q, want %q", size.Key(), tc.extra)
					}
				}
			})
		}
	}
}

// Case is significant where the platform distinguishes it.
func TestLabelMatchHasCaseOfPlatform(t *testing.T) {
	t.Parallel()

	for platform, with := range newLabelPlatforms() {
		job := with.job
		job.Platform, job.Labels = platform, []string{"GPU=a100", "OS=linux"}
		want := platform == v1alpha1.WorkloadGitHubActions || platform == v1alpha1.WorkloadGeneric

		for _, labelMatch := range []string{v1alpha1.LabelMatchAll, v1alpha1.LabelMatchExact, v1alpha1.LabelMatchAny} {
			if _, ok := demand.Match(job, []demand.Pool{with.newPool(platform, labelMatch)}); ok != want {
				t.Errorf("%s, labelMatch %s: matched %t, want %t", platform, labelMatch, ok, want)
			}
		}
	}
}

// The CI platform decides whether two labels of a job are the same. A runner gets each label once.
func TestLabelMatchAnyAddsLabelsOnce(t *testing.T) {
	t.Parallel()

	for platform, with := range newLabelPlatforms() {
		job := with.job
		job.Platform, job.Labels = platform, []string{"os=linux", "Team=blue", "team=blue", "Team=blue"}

		want := []string{"Team=blue", "team=blue"}
		if platform == v1alpha1.WorkloadGitHubActions || platform == v1alpha1.WorkloadGeneric {
			want = want[:1]
		}

		size, refusal := with.newPool(platform, v1alpha1.LabelMatchAny).ParseSize(job)
		if refusal != "" || !slices.Equal(size.Labels, want) {
			t.Errorf("%s: the runner also gets %q, want %q: %s", platform, size.Labels, want, refusal)
		}
	}
}

// Labels that every runner of GitHub has select no pool by themselves, and a job need not request them.
func TestLabelMatchIgnoresDefaultLabels(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		labelMatch string
		labels     []string
		want       bool
		message    string
	}{
		"any, with default labels only":      {v1alpha1.LabelMatchAny, []string{"self-hosted", "ephemeral"}, false, "requests none of the labels [linux, gpu]"},
		"any, with another label":            {v1alpha1.LabelMatchAny, []string{"self-hosted", "macos"}, false, "requests none of the labels [linux, gpu]"},
		"any, with one":                      {v1alpha1.LabelMatchAny, []string{"self-hosted", "gpu"}, true, ""},
		"exact, with default labels":         {v1alpha1.LabelMatchExact, []string{"self-hosted", "linux", "gpu"}, true, ""},
		"exact, without default labels":      {v1alpha1.LabelMatchExact, []string{"linux", "gpu"}, true, ""},
		"exact, with default labels only":    {v1alpha1.LabelMatchExact, []string{"self-hosted"}, false, "does not request [linux, gpu]"},
		"exact, with one":                    {v1alpha1.LabelMatchExact, []string{"linux"}, false, "does not request [gpu]"},
		"exact, with a foreign label":        {v1alpha1.LabelMatchExact, []string{"linux", "gpu", "x"}, false, "lacks [x]"},
		"exact, with a size":                 {v1alpha1.LabelMatchExact, []string{"linux", "gpu", "cpu=8"}, true, ""},
		"any, with a size":                   {v1alpha1.LabelMatchAny, []string{"linux", "cpu=8"}, true, ""},
		"any, with a size that is too large": {v1alpha1.LabelMatchAny, []string{"linux", "cpu=99"}, false, "allows 16"},
		"any, with a size only":              {v1alpha1.LabelMatchAny, []string{"cpu=8"}, false, "requests none of the labels"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			pool := newPool("p", newRepositoryConfig("acme/app", "linux", "gpu"))
			pool.LabelMatch, pool.SizeLabels = tc.labelMatch, newSizeLabels()
			job := newJob(v1alpha1.JobQueued, withLabels(tc.labels...))

			if _, ok := demand.Match(job, []demand.Pool{pool}); ok != tc.want {
				t.Errorf("matched %t, want %t", ok, tc.want)
			}

			if _, message := demand.Explain(job, []demand.Pool{pool}); !tc.want && !strings.Contains(message, tc.message) {
				t.Errorf("message %q, want ...%s...", message, tc.message)
			}
		})
	}
}

// Jobs without labels run where the platform lets them, and with Exact only where the pool has no labels or
// says so.
func TestLabelMatchOfJobsWithoutLabels(t *testing.T) {
	t.Parallel()

	for platform, with := range newLabelPlatforms() {
		job := with.job
		job.Platform = platform

		for _, labelMatch := range []string{v1alpha1.LabelMatchAll, v1alpha1.LabelMatchExact, v1alpha1.LabelMatchAny} {
			labelled := with.newPool(platform, labelMatch)
			want := labelMatch != v1alpha1.LabelMatchExact &&
				platform != v1alpha1.WorkloadGitHubActions && platform != v1alpha1.WorkloadGitLabCI

			if _, ok := demand.Match(job, []demand.Pool{labelled}); ok != want {
				t.Errorf("%s, labelMatch %s: matched %t, want %t", platform, labelMatch, ok, want)
			}

			if platform != v1alpha1.WorkloadGitLabCI {
				continue
			}

			labelled.Runner.CanRunUntagged = true
			if _, ok := demand.Match(job, []demand.Pool{labelled}); !ok {
				t.Errorf("GitLab, labelMatch %s: a pool with runUntagged does not take a job without tags", labelMatch)
			}
		}
	}
}

// The number of labels of a runner stays within the platform's limit.
func TestLabelMatchAnyBoundsLabels(t *testing.T) {
	t.Parallel()

	pool := newPool("p", newRepositoryConfig("acme/app", "linux"))
	pool.LabelMatch = v1alpha1.LabelMatchAny
	labels := []string{"linux"}

	for i := range workload.MaxLabels - 1 {
		labels = append(labels, fmt.Sprintf("l%d", i))
	}

	job := newJob(v1alpha1.JobQueued, withLabels(labels...))
	if _, ok := demand.Match(job, []demand.Pool{pool}); ok {
		t.Error("the pool takes a job whose runner would have more labels than allowed")
	}

	if _, message := demand.Explain(job, []demand.Pool{pool}); !strings.Contains(message, "more than 99 labels") {
		t.Errorf("message %q", message)
	}
}
