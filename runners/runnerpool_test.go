// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
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

// poolWorld is one namespace with one pool, whose claims the test lets live.
type poolWorld struct {
	*testing.T

	namespace string
	clock     *clocktesting.FakePassiveClock
	pools     *runnerpool.Reconciler
	jobs      int
}

// newPoolWorld makes the pool, after change, and its template and cluster, which are ready.
func newPoolWorld(t *testing.T, change func(*v1alpha1.RunnerPool)) *poolWorld {
	t.Helper()

	// Claims bear the API server's time, so the pools' clock begins with it.
	clk := clocktesting.NewFakePassiveClock(time.Now())
	platform := github.Platform{}
	w := &poolWorld{T: t, namespace: env.Namespace(t), clock: clk, pools: &runnerpool.Reconciler{
		Client: env.Client, Live: env.Client, Clock: clk, Recorder: events.NewFakeRecorder(10000),
		Platforms: demand.Platforms{v1alpha1.WorkloadGitHubActions: platform},
		Runner:    &step.Runner{Client: env.Client, Controller: "runnerpool", Clock: clk},
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

// ready writes an object's condition Ready.
func (w *poolWorld) ready(obj step.Object, status metav1.ConditionStatus) {
	w.Helper()
	meta.SetStatusCondition(obj.StatusConditions(), metav1.Condition{
		Type: step.Ready, Status: status, Reason: "Test", Message: "as the test says",
	})

	if err := env.Client.Status().Update(w.Context(), obj); err != nil {
		w.Fatal(err)
	}
}

// template makes a template on a cluster of its own; both are ready.
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

// update changes the pool's spec.
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

// pass makes one pass over the pool, some time after the last.
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

// queue adds jobs that wait.
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

// claims gives the pool's claims that are not being deleted, by name.
func (w *poolWorld) claims() []v1alpha1.MachineClaim {
	w.Helper()

	var list v1alpha1.MachineClaimList
	if err := env.Client.List(w.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.Fatal(err)
	}

	return slices.DeleteFunc(list.Items, func(c v1alpha1.MachineClaim) bool { return !c.DeletionTimestamp.IsZero() })
}

// want makes sure of how many claims there are: to run, and on standby.
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

// is writes what a claim's controller would.
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

// finishDeletions lets the claims that are being deleted be gone.
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

// condition makes sure of one of the pool's conditions.
func (w *poolWorld) condition(kind string, status metav1.ConditionStatus, reason, says string) {
	w.Helper()
	kube.Condition(w, w.pool().Status.Conditions, kind, status, reason, says)
}
