// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload"
)

// releasingPlatform is a CI platform that names the newest release of its runner.
type releasingPlatform struct {
	*fakePlatform

	release workload.Release
	err     error
}

func (r *releasingPlatform) Open(workload.Config) (workload.Provider, error) { return r, nil }

func (r *releasingPlatform) FindRelease(_ context.Context, os, arch string) (workload.Release, error) {
	if os != "linux" || arch != "x64" {
		return workload.Release{}, workload.NewRejected(workload.ReasonReleaseUnknown, os+" "+arch)
	}

	return r.release, r.err
}

// newReleaseFixture returns a template with the version of the runner, whose cluster is ready, and its platform.
func newReleaseFixture(t *testing.T, version string) (*templateFixture, *releasingPlatform, *clocktesting.FakePassiveClock) {
	t.Helper()

	w := newTemplateFixture(t, func(spec *v1alpha1.HypervisorMachineTemplateSpec) {
		spec.Bootstrap.Config.GitHub.Runner = &v1alpha1.GitHubRunner{Version: version}
	})
	createSecrets(w, w.namespace)
	w.createCluster(nil)

	platform := &releasingPlatform{fakePlatform: w.platform, release: workload.Release{
		Version: "2.331.0", URL: "https://github.com/runner-2.331.0.tar.gz", SHA256: strings.Repeat("ab", 32),
	}}
	w.reconciler.Workloads.Platforms[v1alpha1.WorkloadGitHubActions] = platform
	clk := clocktesting.NewFakePassiveClock(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	w.reconciler.Clock = clk

	return w, platform, clk
}

func TestTemplateFindsNewestRunner(t *testing.T) {
	t.Parallel()

	w, platform, _ := newReleaseFixture(t, v1alpha1.RunnerVersionLatest)
	platform.err = workload.NewRejected(workload.ReasonReleaseUnknown, "no checksum: set version to a release")
	w.requireCondition("WorkloadReady", workload.ReasonReleaseUnknown, "no checksum")

	platform.err = nil
	template := w.reconcileUntilStable()

	found := template.Status.Runner
	if !step.IsReady(template) || found == nil || found.Version != "2.331.0" || found.DownloadURL != platform.release.URL ||
		found.SHA256 != platform.release.SHA256 {
		t.Fatalf("%+v, %+v", found, template.Status.Conditions)
	}

	// While GitHub does not name the release, machines get the one that was found before.
	platform.err = workload.NewRejected(workload.ReasonReleaseUnknown, "no checksum")
	if template := w.reconcileUntilStable(); !step.IsReady(template) || template.Status.Runner.Version != "2.331.0" {
		t.Errorf("%+v, %+v", template.Status.Runner, template.Status.Conditions)
	}
}

// Without a scope, the template cannot ask for the newest release.
func TestNewestRunnerNeedsScope(t *testing.T) {
	t.Parallel()

	w := newTemplateFixture(t, func(spec *v1alpha1.HypervisorMachineTemplateSpec) {
		spec.Bootstrap.Config.GitHub.Organization = ""
		spec.Bootstrap.Config.GitHub.Runner = &v1alpha1.GitHubRunner{Version: v1alpha1.RunnerVersionLatest}
	})
	createSecrets(w, w.namespace)
	w.createCluster(nil)
	w.requireCondition("WorkloadReady", workload.ReasonReleaseUnknown, "version latest needs a scope in the template")
}

func TestTemplateWarnsOfOldRunner(t *testing.T) {
	t.Parallel()

	w, platform, clk := newReleaseFixture(t, v1alpha1.RunnerVersionFromImage)
	start := clk.Now()

	template := w.reconcileUntilStable()
	if condition := meta.FindStatusCondition(template.Status.Conditions, v1alpha1.ConditionRunnerCurrent); condition != nil {
		t.Errorf("before a machine has reported its release: %+v", condition)
	}

	claim := newClaim(w.namespace, "m1")
	env.Create(w, claim)
	claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "m1", RunnerVersion: "2.331.0"}

	if err := env.Client.Status().Update(w.Context(), claim); err != nil {
		w.Fatal(err)
	}

	for _, tc := range []struct {
		release string
		days    int
		status  metav1.ConditionStatus
		reason  string
		words   string
	}{
		{"2.331.0", 0, metav1.ConditionTrue, "Newest", "the newest release of the runner, 2.331.0"},
		{"2.331.0", 40, metav1.ConditionTrue, "Newest", "2.331.0"},
		{"2.332.0", 40, metav1.ConditionTrue, "NewerRelease", "machines run 2.331.0 of the runner, a newer one was found on 2026-06-10, and the newest is 2.332.0"},
		{"2.332.0", 59, metav1.ConditionTrue, "NewerRelease", "within 30 days"},
		// GitHub's deadline is that of the first release that machines lack.
		{"2.333.0", 59, metav1.ConditionTrue, "NewerRelease", "found on 2026-06-10, and the newest is 2.333.0"},
		{"2.333.0", 61, metav1.ConditionFalse, "RunnerOutdated", "a newer one was found 21 days ago, and the newest is 2.333.0"},
		// GitHub names a release to some organizations later than the image gets it.
		{"2.330.1", 61, metav1.ConditionTrue, "Newest", "2.331.0"},
		{"2.334.0", 70, metav1.ConditionTrue, "NewerRelease", "found on 2026-07-10"},
	} {
		platform.release.Version = tc.release
		clk.SetTime(start.Add(time.Duration(tc.days) * 24 * time.Hour))

		template := w.reconcileUntilStable()
		kube.CheckCondition(w, template.Status.Conditions, v1alpha1.ConditionRunnerCurrent, tc.status, tc.reason, tc.words)

		if !step.IsReady(template) {
			t.Errorf("day %d: the template is not ready: %+v", tc.days, template.Status.Conditions)
		}
	}

	// The release of a machine stays known when its claim is gone.
	if err := env.Client.Delete(w.Context(), claim); err != nil {
		w.Fatal(err)
	}

	if template := w.reconcileUntilStable(); template.Status.Runner.MachineVersion != "2.331.0" {
		t.Errorf("%+v", template.Status.Runner)
	}
}

// A machine reports its release, so it may be any text.
func TestReleaseIsOutdated(t *testing.T) {
	t.Parallel()

	for machine, want := range map[string]bool{
		"2.330.0": false, "2.331.0": false, "10.0.0": false, "2.329.9": true, "2.99.0": true, "2.4.0": true, "": false, "x": true,
	} {
		release := v1alpha1.RunnerRelease{Version: "2.330.0", MachineVersion: machine}
		if got := release.IsOutdated(); got != want {
			t.Errorf("%q: outdated is %t", machine, got)
		}
	}
}
