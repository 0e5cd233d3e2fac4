// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"cmp"
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
	"github.com/hyperfleet/hyperfleet/workload/generic"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// poolFixture is a fixture: one namespace with one pool. The test does what the controller of its claims
// would do.
type poolFixture struct {
	*testing.T

	namespace  string
	clock      *clocktesting.FakePassiveClock
	reconciler *runnerpool.Reconciler
	recorder   *events.FakeRecorder
	jobs       int
	// platform is that of the jobs. Empty means GitHub.
	platform string
}

// newPoolFixture creates the pool, after change was applied, and its template and cluster, which are ready.
func newPoolFixture(t *testing.T, change func(*v1alpha1.RunnerPool)) *poolFixture {
	t.Helper()

	// Claims have the creation time of the API server, so the clock of the pools starts with it.
	clk := clocktesting.NewFakePassiveClock(time.Now())
	indexed := kube.NewIndexedClient(t, env.Client, demand.AddIndexes)
	recorder := events.NewFakeRecorder(10000)
	w := &poolFixture{T: t, namespace: env.Namespace(t), clock: clk, recorder: recorder, reconciler: &runnerpool.Reconciler{
		Client: indexed, Live: env.Client, Clock: clk, Recorder: recorder,
		Platforms: demand.Platforms{
			v1alpha1.WorkloadGitHubActions: github.Platform{}, v1alpha1.WorkloadGeneric: generic.Platform{},
		},
		StepReconciler: &step.Reconciler{Client: env.Client, Controller: "runnerpool", Clock: clk},
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

	w.createTemplate("one")
	env.Create(w, pool)

	return w
}

// setReady writes the condition Ready of an object.
func (w *poolFixture) setReady(obj step.Object, status metav1.ConditionStatus) {
	w.Helper()
	meta.SetStatusCondition(obj.StatusConditions(), metav1.Condition{
		Type: step.Ready, Status: status, Reason: "Test", Message: "as the test says",
	})

	if err := env.Client.Status().Update(w.Context(), obj); err != nil {
		w.Fatal(err)
	}
}

// createTemplate creates a template on its own cluster. Both are ready.
func (w *poolFixture) createTemplate(name string) *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	cluster := newCluster(w.namespace + "-" + name)
	env.Create(w, cluster)
	w.setReady(cluster, metav1.ConditionTrue)

	template := newTemplate(w.namespace, name, cluster.Name)
	env.Create(w, template)
	w.setReady(template, metav1.ConditionTrue)

	return template
}

// updatePool updates the spec of the pool.
func (w *poolFixture) updatePool(change func(*v1alpha1.RunnerPoolSpec)) {
	w.Helper()

	pool := w.getPool()
	change(&pool.Spec)

	if err := env.Client.Update(w.Context(), pool); err != nil {
		w.Fatal(err)
	}
}

func (w *poolFixture) getPool() *v1alpha1.RunnerPool {
	w.Helper()

	return getObject(w, w.namespace, "pool", &v1alpha1.RunnerPool{})
}

// reconcileAfter advances the clock, and reconciles the pool once.
func (w *poolFixture) reconcileAfter(after time.Duration) reconcile.Result {
	w.Helper()
	w.clock.SetTime(w.clock.Now().Add(after))

	result, err := w.reconciler.Reconcile(w.Context(), reconcile.Request{
		NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: "pool"},
	})
	if err != nil {
		w.Fatalf("Reconcile: %v", err)
	}

	return result
}

// queueJobs adds queued jobs.
func (w *poolFixture) queueJobs(n int) {
	w.Helper()

	for range n {
		w.jobs++
		received := metav1.NewMicroTime(w.clock.Now())
		env.Create(w, &v1alpha1.RunnerJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: fmt.Sprintf("job-%d", w.jobs)},
			Spec: v1alpha1.RunnerJobSpec{
				Platform: cmp.Or(w.platform, v1alpha1.WorkloadGitHubActions), ID: strconv.Itoa(w.jobs), Repository: "octo-org/octo-repo",
				Labels: []string{"linux"}, State: v1alpha1.JobQueued, ReceivedAt: &received,
			},
		})
	}
}

// listClaims returns the claims of the pool that are not being deleted, keyed by name.
func (w *poolFixture) listClaims() []v1alpha1.MachineClaim {
	w.Helper()

	var list v1alpha1.MachineClaimList
	if err := env.Client.List(w.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.Fatal(err)
	}

	return slices.DeleteFunc(list.Items, func(c v1alpha1.MachineClaim) bool { return !c.DeletionTimestamp.IsZero() })
}

// requireClaims checks how many claims the pool has: running, and on standby.
func (w *poolFixture) requireClaims(running, standby int) []v1alpha1.MachineClaim {
	w.Helper()

	claims := w.listClaims()
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
func (w *poolFixture) setClaimStatus(claim *v1alpha1.MachineClaim, change func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime)) {
	w.Helper()

	now := metav1.NewMicroTime(w.clock.Now())

	fresh := getObject(w, w.namespace, claim.Name, &v1alpha1.MachineClaim{})
	if fresh.Status.Times == nil {
		fresh.Status.Times = &v1alpha1.MachineTimes{}
	}

	change(&fresh.Status, &now)

	if fresh.Status.VMRef != nil {
		fresh.Status.VMRef.HypervisorCluster = w.namespace + "-" + claim.Spec.TemplateRef.Name
	}

	if err := env.Client.Status().Update(w.Context(), fresh); err != nil {
		w.Fatal(err)
	}
}

func setPrepared(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
	status.VMRef = &v1alpha1.VMReference{VMID: "100001", Node: "node-1"}
	status.Times.Cloned = now
}

func setIdle(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
	setPrepared(status, now)
	status.Times.Ready = now
}

func setBusy(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
	setIdle(status, now)
	status.Times.JobStarted = now
}

func setFailed(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
	setPrepared(status, now)
	status.Times.Stopped, status.Times.Ended, status.EndReason = now, now, "BootstrapFailed"
}

// finishDeletions removes the finalizers of the claims that are being deleted.
func (w *poolFixture) finishDeletions() {
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
func (w *poolFixture) requireCondition(kind string, status metav1.ConditionStatus, reason, part string) {
	w.Helper()
	kube.CheckCondition(w, w.getPool().Status.Conditions, kind, status, reason, part)
}

// slowClient is a client that counts lists of claims and delays them, as if there were thousands of claims.
type slowClient struct {
	client.Client

	clock *clocktesting.FakePassiveClock
	delay time.Duration
	lists int
}

func (c *slowClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*v1alpha1.MachineClaimList); ok {
		c.lists++
		c.clock.SetTime(c.clock.Now().Add(c.delay))
	}

	return c.Client.List(ctx, list, opts...)
}

// Reconciles of a pool take at most a fifth of the time, however often its machines enqueue it and however
// many machines it has. No requested reconcile is lost.
func TestReconcilesOfPoolAreSpaced(t *testing.T) {
	t.Parallel()

	for takes, delay := range map[time.Duration]time.Duration{
		10 * time.Millisecond: 40 * time.Millisecond, time.Second: 500 * time.Millisecond, 0: 0,
	} {
		w := newPoolFixture(t, nil)
		read := &slowClient{Client: w.reconciler.Client, clock: w.clock, delay: takes}
		w.reconciler.Client = read
		name := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: "pool"}}
		pass := func() time.Duration {
			result, err := w.reconciler.Reconcile(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}

			return result.RequeueAfter
		}

		pass()

		if delay == 0 {
			pass()

			if read.lists != 2 {
				t.Errorf("no reconcile follows one that took no time: %d lists", read.lists)
			}

			continue
		}

		if after := pass(); after != delay || read.lists != 1 {
			t.Errorf("a reconcile took %s: the next is after %s, want %s; %d lists", takes, after, delay, read.lists)
		}

		w.clock.SetTime(w.clock.Now().Add(delay))

		pass()

		if read.lists != 2 {
			t.Errorf("after %s there were %d lists", delay, read.lists)
		}
	}
}

// A pool reports which labels its runners have, also if its spec has none.
func TestRunnerLabelsAreReported(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) { p.Spec.Workload.Config.GitHub.Labels = nil })
	w.reconcileAfter(0)
	w.requireCondition("Observed", metav1.ConditionTrue, "Counted", `the runners have the labels "self-hosted", "hyperfleet", "ephemeral"`)

	w.updatePool(func(spec *v1alpha1.RunnerPoolSpec) {
		spec.Workload.Config.GitHub.Labels, spec.Workload.Config.GitHub.ScaleSet = []string{"linux x64"}, "acme"
	})
	w.reconcileAfter(time.Second)
	w.reconcileAfter(10 * time.Second) // an update with the same reason is not written at once
	w.requireCondition("Observed", metav1.ConditionTrue, "Counted", `"ephemeral", "linux x64", and take only jobs of the queue "acme"`)
}

func TestChangedTemplateReplacesIdleMachines(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) {
		p.Spec.Scaling = v1alpha1.Scaling{MinReplicas: 6, MaxReplicas: 20, Warm: &v1alpha1.Warm{Stopped: 2}}
	})
	w.reconcileAfter(0)

	old := map[string]bool{}
	claims := w.requireClaims(6, 2)
	runs := ""

	for i := range claims {
		old[claims[i].Name] = true

		switch {
		case claims[i].Spec.Standby:
			w.setClaimStatus(&claims[i], setPrepared)
		case runs == "":
			runs = claims[i].Name
			w.setClaimStatus(&claims[i], setBusy)
		default:
			w.setClaimStatus(&claims[i], setIdle)
		}
	}

	w.reconcileAfter(time.Second)
	w.requireClaims(6, 2)

	template := getObject(w, w.namespace, "one", &v1alpha1.HypervisorMachineTemplate{})
	template.Spec.Resources.CPU = 4

	if err := env.Client.Update(t.Context(), template); err != nil {
		t.Fatal(err)
	}

	left := func() int {
		n := 0

		for _, claim := range w.listClaims() {
			if old[claim.Name] {
				n++
			}
		}

		return n
	}

	for want := 6; want >= 2; want -= 2 {
		w.reconcileAfter(time.Second)

		if got := left(); got != want {
			t.Errorf("%d machines of the old template are left, want %d", got, want)
		}

		// No further machines are deleted until the new machines are ready.
		w.reconcileAfter(time.Second)

		if got := left(); got != want {
			t.Errorf("%d machines of the old template are left while new ones start, want %d", got, want)
		}

		w.finishDeletions()
		w.reconcileAfter(time.Second)

		for _, claim := range w.listClaims() {
			switch {
			case old[claim.Name]:
			case claim.Spec.Standby:
				w.setClaimStatus(&claim, setPrepared)
			default:
				w.setClaimStatus(&claim, setIdle)
			}
		}
	}

	w.reconcileAfter(time.Second)
	w.finishDeletions()

	if claims := w.listClaims(); left() != 1 || !slices.ContainsFunc(claims, func(c v1alpha1.MachineClaim) bool { return c.Name == runs }) {
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
			state:  setIdle, before: 50 * time.Second, after: 15 * time.Second,
		},
		"maxLifetime counts from the creation": {
			change: func(s *v1alpha1.RunnerPoolSpec) { s.Lifecycle = &v1alpha1.Lifecycle{MaxLifetime: minute} },
			state:  setPrepared, before: 50 * time.Second, after: 15 * time.Second,
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newPoolFixture(t, func(p *v1alpha1.RunnerPool) { p.Spec.Scaling.MinReplicas = 1 })
			w.reconcileAfter(0)

			first := w.requireClaims(1, 0)[0]
			w.setClaimStatus(&first, test.state)
			w.updatePool(test.change)
			w.reconcileAfter(test.before)

			if claims := w.listClaims(); len(claims) != 1 || claims[0].Name != first.Name {
				t.Errorf("it was deleted too early: %v", claims)
			}

			w.reconcileAfter(test.after)
			w.finishDeletions()
			w.reconcileAfter(0)

			claims := w.listClaims()
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
func TestFailedMachineIsReplaced(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, nil)
	w.queueJobs(1)
	w.reconcileAfter(0)

	dead := w.requireClaims(1, 0)[0]
	w.setClaimStatus(&dead, setFailed)

	after := w.reconcileAfter(0).RequeueAfter
	w.requireCondition("Scaling", metav1.ConditionTrue, "BackingOff", "1 machine failed in a row")

	if after <= 0 || after > 2*time.Second {
		t.Errorf("requeued after %s, want the back-off after one failure", after)
	}

	w.reconcileAfter(after)
	w.requireClaims(2, 0)
}

// A claim that failed before it had a machine is kept during the back-off, and then deleted.
func TestFailedClaimIsDeletedAfterItsBackoff(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, nil)
	w.queueJobs(1)
	w.reconcileAfter(0)

	dead := w.requireClaims(1, 0)[0]
	w.setClaimStatus(&dead, func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		status.Phase, status.EndReason, status.Times.Ended = v1alpha1.MachineClaimFailed, "ProvisioningFailed", now
	})

	isDeleted := func() bool {
		return !slices.ContainsFunc(w.listClaims(), func(c v1alpha1.MachineClaim) bool { return c.Name == dead.Name })
	}

	after := w.reconcileAfter(0).RequeueAfter
	if isDeleted() {
		t.Error("the claim is deleted before a person can inspect it")
	}

	w.reconcileAfter(after)

	if !isDeleted() {
		t.Errorf("the claim is not deleted after the back-off of %s", after)
	}
}
