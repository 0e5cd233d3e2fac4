// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/identity"
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

// stuckHypervisor has machines, of which the first cannot be deleted.
type stuckHypervisor struct {
	fakeHypervisor

	found   []hypervisor.Machine
	deleted []int
}

func (h *stuckHypervisor) List(context.Context) ([]hypervisor.Machine, error) { return h.found, nil }

func (h *stuckHypervisor) Delete(_ context.Context, ref hypervisor.MachineRef) error {
	if ref.ID == h.found[0].ID {
		return newHypervisorError(hypervisor.Rejected, "VMLocked", "run qm unlock")
	}

	h.deleted = append(h.deleted, ref.ID)

	return nil
}

// stuckRegistry has identities, of which the first cannot be deleted.
type stuckRegistry struct {
	identity.Registry

	found   []identity.ID
	deleted []string
}

func (r *stuckRegistry) List(context.Context) ([]identity.ID, error) { return r.found, nil }

func (r *stuckRegistry) Unregister(_ context.Context, id identity.ID) error {
	if id == r.found[0] {
		return errors.New("it is stuck")
	}

	r.deleted = append(r.deleted, id.Name)

	return nil
}

// An orphan that cannot be deleted does not keep the sweeper from the others: machines, runners and identities.
func TestStuckOrphanStopsNoOther(t *testing.T) {
	t.Parallel()

	hv := &stuckHypervisor{found: []hypervisor.Machine{
		{ID: 100, Owner: hypervisor.Owner{Namespace: "ci", Name: "a", UID: "1"}},
		{ID: 101, Owner: hypervisor.Owner{Namespace: "ci", Name: "b", UID: "2"}},
	}}
	clusters := hv.newClusters(fake.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "secrets"},
		Data:       map[string][]byte{"id": []byte("id"), "secret": []byte("s3cret")},
	}).Build(), "system")
	clusters.Factories[v1alpha1.ProviderProxmox] = func(hypervisor.Config, hypervisor.Options) (hypervisor.Connection, error) { return hv, nil }

	if _, err := clusters.Ensure(t.Context(), newCluster("lab")); err != nil {
		t.Fatal(err)
	}

	template, pool := newTemplate("ci", "linux", "lab"), &v1alpha1.RunnerPool{}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Organization: "acme"}}
	pool.Namespace, pool.Name, pool.Spec.TemplateRef.Name = "ci", "pool", template.Name
	pool.Spec.Workload = newClaim("ci", "a").Spec.WorkloadConfig

	ours := []string{vmspec.OperatorLabel("me")}
	platform := &fakePlatform{Platform: github.NewPlatform(), stuck: "1", runners: []workload.Runner{
		{ID: "1", Name: "stuck", Labels: ours}, {ID: "2", Name: "lost", Labels: ours},
	}}
	registry := &stuckRegistry{found: []identity.ID{{Namespace: "ci", Name: "a", UID: "1"}, {Namespace: "ci", Name: "b", UID: "2"}}}
	s := &orphans.Sweeper{
		Identity: registry,
		Live:     fake.NewClientBuilder().WithScheme(env.Scheme).WithObjects(template, pool).Build(),
		Recorder: events.NewFakeRecorder(8), OperatorUID: "me", Clock: testclock.NewFakeClock(time.Unix(1_800_000_000, 0)),
		Log: slog.New(slog.DiscardHandler), Clusters: clusters, Workloads: &connect.Workloads{
			Secrets: &connect.Secrets{}, Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: platform},
		},
	}

	s.Sweep(t.Context())

	if diff := cmp.Diff([]int{101}, hv.deleted); diff != "" {
		t.Errorf("deleted machines (-want +got):\n%s", diff)
	}

	if diff := cmp.Diff([]string{"2"}, platform.deregistered); diff != "" {
		t.Errorf("removed runners (-want +got):\n%s", diff)
	}

	if diff := cmp.Diff([]string{"b"}, registry.deleted); diff != "" {
		t.Errorf("removed identities (-want +got):\n%s", diff)
	}
}
