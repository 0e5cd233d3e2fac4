// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func newPlatforms() demand.Platforms {
	return demand.Platforms{v1alpha1.WorkloadGitHubActions: github.Platform{}}
}

// newPool returns a pool as NewPool reads it.
func newPool(name string, config v1alpha1.GitHubActionsConfig) demand.Pool {
	return newPlatforms().NewPool(&v1alpha1.RunnerPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: v1alpha1.RunnerPoolSpec{Workload: v1alpha1.Workload{
			Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &config},
		}},
	}, nil)
}

func newRepositoryConfig(repository string, labels ...string) v1alpha1.GitHubActionsConfig {
	return v1alpha1.GitHubActionsConfig{Repository: repository, Labels: labels}
}

func newOrganizationConfig(organization string, labels ...string) v1alpha1.GitHubActionsConfig {
	return v1alpha1.GitHubActionsConfig{Organization: organization, Labels: labels}
}

// newEnterprisePool returns a pool whose template names an enterprise, as NewPool reads it.
func newEnterprisePool(name, enterprise string, labels ...string) demand.Pool {
	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Enterprise: enterprise}}

	return newPlatforms().NewPool(&v1alpha1.RunnerPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: v1alpha1.RunnerPoolSpec{TemplateRef: v1alpha1.LocalObjectReference{Name: "t"}, Workload: v1alpha1.Workload{
			Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Labels: labels}},
		}},
	}, demand.Templates{"t": template})
}

func withLabels(labels ...string) func(*workload.Job) {
	return func(j *workload.Job) { j.Labels = labels }
}

func TestMatch(t *testing.T) {
	t.Parallel()

	linux := newPool("linux", newRepositoryConfig("acme/app", "linux"))
	gpu := newPool("gpu", newOrganizationConfig("acme", "linux", "GPU"))
	corp := newEnterprisePool("corp", "corp", "linux")

	tests := map[string]struct {
		job     workload.Job
		pools   []demand.Pool
		want    string
		reason  string
		message string
	}{
		"all labels": {job: newJob(v1alpha1.JobQueued), pools: []demand.Pool{linux}, want: "linux"},
		"case does not matter": {
			job: newJob(v1alpha1.JobQueued, withLabels("Self-Hosted", "LINUX", "gpu")), pools: []demand.Pool{linux, gpu}, want: "gpu",
		},
		"default labels are sufficient": {
			job: newJob(v1alpha1.JobQueued, withLabels("self-hosted", "hyperfleet")), pools: []demand.Pool{linux}, want: "linux",
		},
		"the first by name": {job: newJob(v1alpha1.JobQueued), pools: []demand.Pool{linux, gpu}, want: "gpu"},
		"an organization matches the repository's owner": {
			job:   newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = "ACME/other" }),
			pools: []demand.Pool{linux, gpu}, want: "gpu",
		},
		"missing labels": {
			job: newJob(v1alpha1.JobQueued, withLabels("self-hosted", "linux", "arm64")), pools: []demand.Pool{gpu, linux},
			reason: demand.ReasonNoLabels, message: "RunnerPool gpu comes closest and lacks [arm64]",
		},
		"the closest pool is named": {
			job: newJob(v1alpha1.JobQueued, withLabels("gpu", "arm64")), pools: []demand.Pool{linux, gpu},
			reason: demand.ReasonNoLabels, message: "[gpu, arm64]: RunnerPool gpu comes closest and lacks [arm64]",
		},
		"another repository": {
			job:   newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = "acme/application" }),
			pools: []demand.Pool{linux}, reason: demand.ReasonNoScope, message: "acme/application",
		},
		"an owner with the same prefix": {
			job:   newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = "acme2/app" }),
			pools: []demand.Pool{gpu}, reason: demand.ReasonNoScope, message: "acme2/app",
		},
		"an organization that does not own the repository": {
			job:   newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository, j.Organization = "mallory/app", "acme" }),
			pools: []demand.Pool{gpu}, reason: demand.ReasonNoScope, message: "mallory/app",
		},
		"an enterprise whose pool reported the job": {
			job:   newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Enterprise = "Corp" }),
			pools: []demand.Pool{corp}, want: "corp",
		},
		"an enterprise whose pool did not report the job": {
			job: newJob(v1alpha1.JobQueued), pools: []demand.Pool{corp}, reason: demand.ReasonNoScope, message: "acme/app",
		},
		"another enterprise": {
			job:   newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Enterprise = "mallory" }),
			pools: []demand.Pool{corp}, reason: demand.ReasonNoScope, message: "acme/app",
		},
		"no labels": {
			job: newJob(v1alpha1.JobQueued, withLabels()), pools: []demand.Pool{linux}, reason: demand.ReasonNotOffered, message: "runs-on",
		},
		"another platform": {
			job:   newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Platform = v1alpha1.WorkloadBuildkite }),
			pools: []demand.Pool{linux}, reason: demand.ReasonNoPool, message: "buildkite",
		},
		"no pools": {job: newJob(v1alpha1.JobQueued), reason: demand.ReasonNoPool, message: "github-actions"},
		"a pool without scope": {
			job: newJob(v1alpha1.JobQueued), pools: []demand.Pool{newPool("lost", v1alpha1.GitHubActionsConfig{Labels: []string{"linux"}})},
			reason: demand.ReasonNoScope, message: "acme/app",
		},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, ok := demand.Match(test.job, test.pools)
			if got.Name != test.want || ok != (test.want != "") {
				t.Errorf("Match = %q, %t; want %q", got.Name, ok, test.want)
			}

			if test.want != "" {
				return
			}

			reason, message := demand.Explain(test.job, test.pools)
			if reason != test.reason || !strings.Contains(message, test.message) {
				t.Errorf("Explain = %s: %s; want %s: ...%s...", reason, message, test.reason, test.message)
			}
		})
	}
}

func TestPoolOfTakesScopeFromTemplate(t *testing.T) {
	t.Parallel()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Owner: "acme", Repository: "app"}}

	own := &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.RunnerPoolSpec{TemplateRef: v1alpha1.LocalObjectReference{Name: "t"}, Workload: v1alpha1.Workload{
		Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{}},
	}}}

	if got := newPlatforms().NewPool(own, demand.Templates{"t": template}).Runner.Scope; got != (workload.Scope{Repository: "acme/app"}) {
		t.Errorf("scope = %+v, want that of the template", got)
	}
}

func TestDemand(t *testing.T) {
	t.Parallel()

	elsewhere := newPool("linux", newRepositoryConfig("acme/app", "linux"))
	elsewhere.Namespace = "other"
	pools := []demand.Pool{
		newPool("linux", newRepositoryConfig("acme/app", "linux")), newPool("gpu", newRepositoryConfig("acme/app", "linux", "gpu")), elsewhere,
	}

	object := func(job workload.Job) v1alpha1.RunnerJob {
		return v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: job}
	}
	deleted := object(newJob(v1alpha1.JobQueued))
	deleted.DeletionTimestamp = newMinute(0)

	jobs := []v1alpha1.RunnerJob{
		object(newJob(v1alpha1.JobQueued, withLabels("ephemeral", "linux", "gpu"))),
		object(newJob(v1alpha1.JobQueued, withLabels("arm64"))),
		object(newJob(v1alpha1.JobRunning, withLabels("GPU"))),
		object(newJob(v1alpha1.JobWaiting)), object(newJob(v1alpha1.JobCompleted)), deleted,
	}
	want := map[types.NamespacedName]demand.JobCount{
		{Namespace: "ns", Name: "gpu"}:      {Queued: 1, Running: 1},
		{Namespace: "ns", Name: "linux"}:    {},
		{Namespace: "other", Name: "linux"}: {},
	}

	for key, want := range want {
		count, sizes := demand.FindDemand(jobs, pools, key)
		if count != want || len(sizes) != want.Queued {
			t.Errorf("pool %s: %+v with %d sizes, want %+v", key, count, len(sizes), want)
		}
	}
}
