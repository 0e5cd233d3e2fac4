// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/orphans"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// The sweeper deletes only runners that have the label of this operator, are offline and idle, and have had
// no claim for at least MinAge.
func TestRunnersOfOthersStay(t *testing.T) {
	t.Parallel()

	claim, template, pool := newClaim("ci", "kept"), newTemplate("ci", "linux", "cluster"), &v1alpha1.RunnerPool{}
	claim.UID = "0123456789"
	pool.Namespace, pool.Name, pool.Spec.TemplateRef, pool.Spec.Workload = "ci", "pool", claim.Spec.TemplateRef, claim.Spec.WorkloadConfig
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Organization: "acme"}}

	clk := testclock.NewFakeClock(time.Unix(1_800_000_000, 0))
	ours := []string{vmspec.OperatorLabel("me")}
	platform := &fakePlatform{Platform: github.NewPlatform(), runners: []workload.Runner{
		{ID: "1", Name: "lost", Labels: ours},
		{ID: "2", Name: "busy", Labels: ours, Busy: true},
		{ID: "3", Name: "online", Labels: ours, Online: true},
		{ID: "4", Name: vmspec.RunnerName(claim), Labels: ours},
		{ID: "5", Name: "somebody's", Labels: []string{"linux"}},
		{ID: "6", Name: "another-operator's", Labels: []string{vmspec.OperatorLabel("other")}},
	}}
	s := &orphans.Sweeper{
		Live:     fake.NewClientBuilder().WithScheme(env.Scheme).WithObjects(claim, template, pool).Build(),
		Recorder: events.NewFakeRecorder(8), OperatorUID: "me", MinAge: time.Minute, Clock: clk, Log: slog.New(slog.DiscardHandler),
		Clusters: &connect.Clusters{}, Workloads: &connect.Workloads{
			Secrets: &connect.Secrets{}, Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: platform},
		},
	}

	s.Sweep(t.Context())
	clk.Step(time.Minute - time.Second)
	s.Sweep(t.Context())

	if len(platform.deregistered) > 0 {
		t.Errorf("removed before MinAge: %v", platform.deregistered)
	}

	clk.Step(time.Second)
	s.Sweep(t.Context())

	if diff := cmp.Diff([]string{"1"}, platform.deregistered); diff != "" {
		t.Errorf("removed (-want +got):\n%s", diff)
	}

	s.DryRun, platform.deregistered = true, nil
	s.Sweep(t.Context())

	if len(platform.deregistered) > 0 {
		t.Errorf("a dry run removed %v", platform.deregistered)
	}

	s.DryRun, s.Namespaces = false, []string{"of-this-operator"}
	s.Sweep(t.Context())

	if len(platform.deregistered) > 0 {
		t.Errorf("an operator of other namespaces removed %v", platform.deregistered)
	}
}
