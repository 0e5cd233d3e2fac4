// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/runnerpool"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// poolFixture is a fixture: one namespace with one pool. The test does what the controller of its claims
// would do.
type poolWorld struct {
	*testing.T

	namespace string
	clock     *clocktesting.FakePassiveClock
	pools     *runnerpool.Reconciler
	jobs      int
}

// newPoolFixture creates the pool, after change was applied, and its template and cluster, which are ready.
func newPoolWorld(t *testing.T, change func(*v1alpha1.RunnerPool)) *poolWorld {
	t.Helper()

	// Claims have the creation time of the API server, so the clock of the pools starts with it.
	clk := clocktesting.NewFakePassiveClock(time.Now())
	platform := github.Platform{}
	w := &poolWorld{T: t, namespace: env.Namespace(t), clock: clk, pools: &runnerpool.Reconciler{
		Client: env.Client, Live: env.Client, Clock: clk, Recorder: events.NewFakeRecorder(10000),
		Platforms: demand.Platforms{v1alpha1.WorkloadGitHubActions: platform},
		Runner:    &step.Reconciler{Client: env.Client, Controller: "runnerpool", Clock: clk},
	}}
	pool := &v1alpha1.RunnerPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "pool"},
		Spec: v1alpha1.RunnerPoolSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "one"},
			Workload: v1alpha1.Workload{
				Type: v1alpha1.WorkloadGitHubActions,
				Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{
					Repository: "octo-org/octo-repo", Labels: []string{"linux"},
				}},
			},
			Scaling: v1alpha1.Scaling{MaxReplicas: 8},
		},
	}

	if change != nil {
		change(pool)
	}

	w.template("one")
	env.Create(w, pool)

	return w
}

// setReady writes the condition Ready of an object.
func (w *poolWorld) ready(obj step.Object, status metav1.ConditionStatus) {
	w.Helper()
	meta.SetStatusCondition(obj.StatusConditions(), metav1.Condition{
		Type: step.Ready, Status: status, Reason: "Test", Message: "as the test says",
	})

	if err := env.Client.Status().Update(w.Context(), obj); err != nil {
		w.Fatal(err)
	}
}

// createTemplate creates a template on its own cluster. Both are ready.
func (w *poolWorld) template(name string) *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	cluster := clusterOf(w.namespace + "-" + name)
	env.Create(w, cluster)
	w.ready(cluster, metav1.ConditionTrue)

	template := templateOf(w.namespace, name, cluster.Name)
	env.Create(w, template)
	w.ready(template, metav1.ConditionTrue)

	return template
}

// updatePool updates the spec of the pool.
func (w *poolWorld) update(change func(*v1alpha1.RunnerPoolSpec)) {
	w.Helper()

	pool := w.pool()
	change(&pool.Spec)

	if err := env.Client.Update(w.Context(), pool); err != nil {
		w.Fatal(err)
	}
}

func (w *poolWorld) pool() *v1alpha1.RunnerPool {
	w.Helper()

	return read(w, w.namespace, "pool", &v1alpha1.RunnerPool{})
}

// reconcileAfter advances the clock, and reconciles the pool once.
func (w *poolWorld) pass(after time.Duration) reconcile.Result {
	w.Helper()
	w.clock.SetTime(w.clock.Now().Add(after))

	result, err := w.pools.Reconcile(w.Context(), reconcile.Request{
		NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: "pool"},
	})
	if err != nil {
		w.Fatalf("Reconcile: %v", err)
	}

	return result
}

// queueJobs adds queued jobs.
func (w *poolWorld) queue(n int) {
	w.Helper()

	for range n {
		w.jobs++
		received := metav1.NewMicroTime(w.clock.Now())
		env.Create(w, &v1alpha1.RunnerJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("job-%d", w.jobs)},
			Spec: v1alpha1.RunnerJobSpec{
				Platform: v1alpha1.WorkloadGitHubActions, ID: strconv.Itoa(w.jobs), Repository: "octo-org/octo-repo",
				Labels: []string{"linux"}, State: v1alpha1.JobQueued, ReceivedAt: &received,
			},
		})
	}
}

// listClaims returns the claims of the pool that are not being deleted, keyed by name.
func (w *poolWorld) claims() []v1alpha1.MachineClaim {
	w.Helper()

	var list v1alpha1.MachineClaimList
	if err := env.Client.List(w.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.Fatal(err)
	}

	return slices.DeleteFunc(list.Items, func(c v1alpha1.MachineClaim) bool { return !c.DeletionTimestamp.IsZero() })
}

// requireClaims checks how many claims the pool has: running, and on standby.
func (w *poolWorld) want(running, standby int) []v1alpha1.MachineClaim {
	w.Helper()

	claims := w.claims()
	held := 0

	for i := range claims {
		if claims[i].Spec.Standby {
			held++
		}
	}

	if len(claims)-held != running || held != standby {
		w.Errorf("%d claims and %d on standby, want %d and %d", len(claims)-held, held, running, standby)
	}

	return claims
}

// setClaimStatus writes the status of a claim, as its controller would.
func (w *poolWorld) is(claim *v1alpha1.MachineClaim, change func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime)) {
	w.Helper()

	now := metav1.NewMicroTime(w.clock.Now())

	fresh := read(w, w.namespace, claim.Name, &v1alpha1.MachineClaim{})
	if fresh.Status.Times == nil {
		fresh.Status.Times = &v1alpha1.MachineTimes{}
	}

	change(&fresh.Status, &now)

	if err := env.Client.Status().Update(w.Context(), fresh); err != nil {
		w.Fatal(err)
	}
}

func prepared(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
	status.VMRef = &v1alpha1.VMReference{HypervisorCluster: "c", VMID: "100001"}
	status.Times.Cloned = now
}

func idle(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
	prepared(status, now)
	status.Times.Ready = now
}

func busy(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
	idle(status, now)
	status.Times.JobStarted = now
}

func died(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
	prepared(status, now)
	status.Times.Stopped, status.Times.Ended, status.EndReason = now, now, "BootstrapFailed"
}

// finishDeletions removes the finalizers of the claims that are being deleted.
func (w *poolWorld) finishDeletions() {
	w.Helper()

	var list v1alpha1.MachineClaimList
	if err := env.Client.List(w.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.Fatal(err)
	}

	for i := range list.Items {
		if claim := &list.Items[i]; !claim.DeletionTimestamp.IsZero() {
			claim.Finalizers = nil
			if err := env.Client.Update(w.Context(), claim); err != nil {
				w.Fatal(err)
			}
		}
	}
}

// requireCondition checks one condition of the pool.
func (w *poolWorld) condition(kind string, status metav1.ConditionStatus, reason, says string) {
	w.Helper()
	kube.CheckCondition(w, w.pool().Status.Conditions, kind, status, reason, says)
}

// slowClient is a client that counts lists of claims and delays them, as if there were thousands of claims.
type slow struct {
	client.Client

	clock *clocktesting.FakePassiveClock
	takes time.Duration
	lists int
}

func (c *slow) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.MachineClaimList); ok {
		c.lists++
		c.clock.SetTime(c.clock.Now().Add(c.takes))
	}

	return c.Client.List(ctx, list, opts...)
}

// Reconciles of a pool take at most a fifth of the time, however often its machines enqueue it and however
// many machines it has. No requested reconcile is lost.
func TestLooksAtAPoolAreKeptApart(t *testing.T) {
	t.Parallel()

	for takes, pause := range map[time.Duration]time.Duration{
		10 * time.Millisecond: 40 * time.Millisecond, time.Second: 500 * time.Millisecond, 0: 0,
	} {
		w := newPoolWorld(t, nil)
		read := &slow{Client: env.Client, clock: w.clock, takes: takes}
		w.pools.Client = read
		name := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: "pool"}}
		pass := func() time.Duration {
			result, err := w.pools.Reconcile(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}

			return result.RequeueAfter
		}

		pass()

		if pause == 0 {
			pass()

			if read.lists != 2 {
				t.Errorf("no reconcile follows one that took no time: %d lists", read.lists)
			}

			continue
		}

		if after := pass(); after != pause || read.lists != 1 {
			t.Errorf("a reconcile took %s: the next is after %s, want %s; %d lists", takes, after, pause, read.lists)
		}

		w.clock.SetTime(w.clock.Now().Add(pause))

		pass()

		if read.lists != 2 {
			t.Errorf("after %s there were %d lists", pause, read.lists)
		}
	}
}

// A pool reports which labels its runners have, also if its spec has none.
func TestLabelsOfRunnersAreTold(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) { p.Spec.Workload.Config.GitHub.Labels = nil })
	w.pass(0)
	w.condition("Observed", metav1.ConditionTrue, "Counted", `the runners have the labels "self-hosted", "hyperfleet", "ephemeral"`)

	w.update(func(spec *v1alpha1.RunnerPoolSpec) {
		spec.Workload.Config.GitHub.Labels, spec.Workload.Config.GitHub.ScaleSet = []string{"linux x64"}, "acme"
	})
	w.pass(time.Second)
	w.pass(10 * time.Second) // an update with the same reason is not written at once
	w.condition("Observed", metav1.ConditionTrue, "Counted", `"ephemeral", "linux x64", and take only jobs of the queue "acme"`)
}

func TestMachinesAreSpreadOverTemplates(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Placement = &v1alpha1.Placement{TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}, {Name: "three"}}}
	})
	w.template("two")
	w.queue(4)
	w.pass(0)
	w.count(map[string]int{"one": 2, "two": 2})
	w.condition("TemplateReady", metav1.ConditionTrue, "SomeTemplatesNotReady", `there is no HypervisorMachineTemplate "three"`)

	// The cluster of the first template fails: the pool uses the other template.
	w.ready(read(w, "", w.namespace+"-one", &v1alpha1.HypervisorCluster{}), metav1.ConditionFalse)
	w.queue(2)
	w.pass(time.Second)
	w.count(map[string]int{"one": 2, "two": 4})
	w.pass(10 * time.Second) // an update with the same reason is not written at once
	w.condition("TemplateReady", metav1.ConditionTrue, "SomeTemplatesNotReady", "is not ready: as the test says")
}

// requireTemplateCounts checks how many claims use each template.
func (w *poolWorld) count(want map[string]int) {
	w.Helper()

	got := map[string]int{}
	for _, claim := range w.claims() {
		got[claim.Spec.TemplateRef.Name]++
	}

	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("machines by template: %v, want %v", got, want)
	}
}

func TestPackedMachinesMoveOnWhenAClusterIsFull(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Placement = &v1alpha1.Placement{
			Strategy: v1alpha1.PlacementPack, TemplateRefs: []v1alpha1.LocalObjectReference{{Name: "two"}},
		}
	})
	w.template("two")
	w.queue(3)
	w.pass(0)
	w.count(map[string]int{"one": 3})

	full := func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionPlaced, Status: metav1.ConditionFalse, Reason: "NoCapacity", Message: "no node has room",
			LastTransitionTime: metav1.NewTime(now.Time),
		}}
	}
	claims := w.claims()
	w.is(&claims[0], full)
	w.is(&claims[1], prepared)
	w.is(&claims[2], prepared)

	// The waiting machine is created on another cluster, and so are further machines for some time.
	w.pass(time.Second)
	w.finishDeletions()
	w.count(map[string]int{"one": 2, "two": 1})
	w.queue(1)
	w.pass(time.Second)
	w.count(map[string]int{"one": 2, "two": 2})

	// If no other cluster has capacity, the claim stays.
	for _, claim := range w.claims() {
		if claim.Spec.TemplateRef.Name == "two" {
			w.is(&claim, full)
		}
	}

	w.pass(time.Second)
	w.count(map[string]int{"one": 2, "two": 2})

	// Later the pool uses the first template again.
	w.pass(2 * time.Minute)
	w.finishDeletions()
	w.count(map[string]int{"one": 4})

	for _, claim := range w.claims() {
		if claim.Spec.Placement != v1alpha1.PlacementPack {
			t.Errorf("claim %s is placed by %q", claim.Name, claim.Spec.Placement)
		}
	}
}

func TestAChangedTemplateReplacesWhatHasNoJob(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Scaling = v1alpha1.Scaling{MinReplicas: 6, MaxReplicas: 20, Warm: &v1alpha1.Warm{Stopped: 2}}
	})
	w.pass(0)

	old := map[string]bool{}
	claims := w.want(6, 2)
	runs := ""

	for i := range claims {
		old[claims[i].Name] = true

		switch {
		case claims[i].Spec.Standby:
			w.is(&claims[i], prepared)
		case runs == "":
			runs = claims[i].Name
			w.is(&claims[i], busy)
		default:
			w.is(&claims[i], idle)
		}
	}

	w.pass(time.Second)
	w.want(6, 2)

	template := read(w, w.namespace, "one", &v1alpha1.HypervisorMachineTemplate{})
	template.Spec.Resources.CPU = 4

	if err := env.Client.Update(t.Context(), template); err != nil {
		t.Fatal(err)
	}

	left := func() int {
		n := 0

		for _, claim := range w.claims() {
			if old[claim.Name] {
				n++
			}
		}

		return n
	}

	for want := 6; want >= 2; want -= 2 {
		w.pass(time.Second)

		if got := left(); got != want {
			t.Errorf("%d machines of the old template are left, want %d", got, want)
		}

		// No further machines are deleted until the new machines are ready.
		w.pass(time.Second)

		if got := left(); got != want {
			t.Errorf("%d machines of the old template are left while new ones start, want %d", got, want)
		}

		w.finishDeletions()
		w.pass(time.Second)

		for _, claim := range w.claims() {
			switch {
			case old[claim.Name]:
			case claim.Spec.Standby:
				w.is(&claim, prepared)
			default:
				w.is(&claim, idle)
			}
		}
	}

	w.pass(time.Second)
	w.finishDeletions()

	if claims := w.claims(); left() != 1 || !slices.ContainsFunc(claims, func(c v1alpha1.MachineClaim) bool { return c.Name == runs }) {
		t.Errorf("%d machines of the old template are left, want the busy one %s", left(), runs)
	}
}

func TestLimitsOfAPool(t *testing.T) {
	t.Parallel()

	minute := &metav1.Duration{Duration: time.Minute}
	cases := map[string]struct {
		change func(*v1alpha1.RunnerPoolSpec)
		state  func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime)
		// They are kept right before the limit, and deleted after it.
		before, after time.Duration
	}{
		"idleTimeout replaces one of the minimum": {
			change: func(s *v1alpha1.RunnerPoolSpec) { s.Lifecycle = &v1alpha1.Lifecycle{IdleTimeout: minute} },
			state:  idle, before: 50 * time.Second, after: 15 * time.Second,
		},
		"maxLifetime counts from the creation": {
			change: func(s *v1alpha1.RunnerPoolSpec) { s.Lifecycle = &v1alpha1.Lifecycle{MaxLifetime: minute} },
			state:  prepared, before: 50 * time.Second, after: 15 * time.Second,
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newPoolWorld(t, func(p *v1alpha1.RunnerPool) { p.Spec.Scaling.MinReplicas = 1 })
			w.pass(0)

			first := w.want(1, 0)[0]
			w.is(&first, test.state)
			w.update(test.change)
			w.pass(test.before)

			if claims := w.claims(); len(claims) != 1 || claims[0].Name != first.Name {
				t.Errorf("it was deleted too early: %v", claims)
			}

			w.pass(test.after)
			w.finishDeletions()
			w.pass(0)

			claims := w.claims()
			if slices.ContainsFunc(claims, func(c v1alpha1.MachineClaim) bool { return c.Name == first.Name }) {
				t.Error("it still exists")
			}

			if len(claims) != 1 {
				t.Errorf("%d machines exist, want its replacement", len(claims))
			}
		})
	}
}

// If a machine fails before its runner is online, the pool creates another machine for the job at once.
func TestADeadMachineIsReplaced(t *testing.T) {
	t.Parallel()

	w := newPoolWorld(t, nil)
	w.queue(1)
	w.pass(0)

	dead := w.want(1, 0)[0]
	w.is(&dead, died)

	after := w.pass(0).RequeueAfter
	w.condition("Scaling", metav1.ConditionTrue, "BackingOff", "1 machine failed in a row")

	if after <= 0 || after > 2*time.Second {
		t.Errorf("requeued after %s, want the back-off after one failure", after)
	}

	w.pass(after)
	w.want(2, 0)
}
