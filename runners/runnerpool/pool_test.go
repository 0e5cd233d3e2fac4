// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/runnerpool"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
}

// world is one namespace with one pool, whose claims the test lets live.
type world struct {
	*testing.T

	namespace string
	clock     *clocktesting.FakePassiveClock
	pools     *runnerpool.Reconciler
	jobs      int
}

// newWorld makes the pool, after change, and its template and cluster, which are ready.
func newWorld(t *testing.T, change func(*v1alpha1.RunnerPool)) *world {
	t.Helper()

	// Claims bear the API server's time, so the pools' clock begins with it.
	clk := clocktesting.NewFakePassiveClock(time.Now())
	platform := github.Platform{}
	w := &world{T: t, namespace: env.Namespace(t), clock: clk, pools: &runnerpool.Reconciler{
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

func (w *world) get(name string, obj client.Object) {
	w.Helper()

	if err := env.Client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, obj); err != nil {
		w.Fatalf("get %s: %v", name, err)
	}
}

// ready writes an object's condition Ready.
func (w *world) ready(obj step.Object, status metav1.ConditionStatus) {
	w.Helper()
	meta.SetStatusCondition(obj.StatusConditions(), metav1.Condition{
		Type: step.Ready, Status: status, Reason: "Test", Message: "as the test says",
	})

	if err := env.Client.Status().Update(w.Context(), obj); err != nil {
		w.Fatal(err)
	}
}

// template makes a template on a cluster of its own; both are ready.
func (w *world) template(name string) *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	secret := v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "proxmox", Key: "token"}}
	cluster := &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace + "-" + name},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: "proxmox", Endpoint: "https://pve.example:8006/api2/json",
			Credentials: v1alpha1.HypervisorCredentials{TokenID: &secret, TokenSecret: &secret},
		},
	}
	env.Create(w, cluster)
	w.ready(cluster, metav1.ConditionTrue)

	template := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: cluster.Name},
			Template:             v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: "linux"}},
			Resources:            v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
		},
	}
	env.Create(w, template)
	w.ready(template, metav1.ConditionTrue)

	return template
}

// update changes the pool's spec.
func (w *world) update(change func(*v1alpha1.RunnerPoolSpec)) {
	w.Helper()

	pool := w.pool()
	change(&pool.Spec)

	if err := env.Client.Update(w.Context(), pool); err != nil {
		w.Fatal(err)
	}
}

func (w *world) pool() *v1alpha1.RunnerPool {
	w.Helper()

	var pool v1alpha1.RunnerPool
	w.get("pool", &pool)

	return &pool
}

// pass makes one pass over the pool, some time after the last.
func (w *world) pass(after time.Duration) reconcile.Result {
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
func (w *world) queue(n int) {
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
func (w *world) claims() []v1alpha1.MachineClaim {
	w.Helper()

	var list v1alpha1.MachineClaimList
	if err := env.Client.List(w.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.Fatal(err)
	}

	return slices.DeleteFunc(list.Items, func(c v1alpha1.MachineClaim) bool { return !c.DeletionTimestamp.IsZero() })
}

// want makes sure of how many claims there are: to run, and on standby.
func (w *world) want(running, standby int) []v1alpha1.MachineClaim {
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
func (w *world) is(claim *v1alpha1.MachineClaim, change func(*v1alpha1.MachineClaimStatus, *metav1.MicroTime)) {
	w.Helper()

	now := metav1.NewMicroTime(w.clock.Now())

	var fresh v1alpha1.MachineClaim
	w.get(claim.Name, &fresh)

	if fresh.Status.Times == nil {
		fresh.Status.Times = &v1alpha1.MachineTimes{}
	}

	change(&fresh.Status, &now)

	if err := env.Client.Status().Update(w.Context(), &fresh); err != nil {
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
func (w *world) finishDeletions() {
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
func (w *world) condition(kind string, status metav1.ConditionStatus, reason, says string) {
	w.Helper()

	got := meta.FindStatusCondition(w.pool().Status.Conditions, kind)
	if got == nil || got.Status != status || got.Reason != reason || !strings.Contains(got.Message, says) {
		w.Errorf("condition %s = %+v, want %s %s: ...%s...", kind, got, status, reason, says)
	}
}
