// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/hypervisorcluster"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// clusterFixture is a fixture with one cluster. The test controls the responses of its hypervisor.
type clusterFixture struct {
	*testing.T

	name           string
	fakeHypervisor *fakeHypervisor
	reconciler     *hypervisorcluster.Reconciler
}

func newClusterFixture(t *testing.T) *clusterFixture {
	t.Helper()

	w := &clusterFixture{T: t, name: env.Namespace(t), fakeHypervisor: &fakeHypervisor{nodes: []hypervisor.Node{
		{Name: "one", Online: true, Free: hypervisor.Resources{CPU: 2, Memory: 3*gib + 5, Disk: 40 * gib}},
		{Name: "two", Online: true, Free: hypervisor.Resources{CPU: 4, Memory: 4 * gib, Disk: 50*gib + 5}},
	}}}
	w.reconciler = &hypervisorcluster.Reconciler{
		Client: env.Client, Live: env.Client, Interval: time.Minute,
		StepReconciler: &step.Reconciler{Client: env.Client, Controller: "hypervisorcluster"},
		Clusters:       w.fakeHypervisor.newClusters(env.Client, w.name), Keeper: newKeeper(t),
	}
	env.Create(w, newCluster(w.name))

	return w
}

// reconcileUntilStable reconciles the cluster three times, so that its status no longer changes, and returns
// it.
func (w *clusterFixture) reconcileUntilStable() *v1alpha1.HypervisorCluster {
	w.Helper()

	for range 3 {
		w.reconcileOnce()
	}

	return w.getCluster()
}

func (w *clusterFixture) reconcileOnce() reconcile.Result {
	w.Helper()

	result, err := w.reconciler.Reconcile(w.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: w.name}})
	if err != nil {
		w.Fatalf("reconcile: %v", err)
	}

	return result
}

func (w *clusterFixture) getCluster() *v1alpha1.HypervisorCluster {
	w.Helper()

	return getObject(w, "", w.name, &v1alpha1.HypervisorCluster{})
}

func newHypervisorError(kind hypervisor.Kind, reason, message string) error {
	return &hypervisor.Error{Kind: kind, Reason: reason, Message: message}
}

func TestClusterBecomesReady(t *testing.T) {
	t.Parallel()

	w := newClusterFixture(t)

	cluster := w.reconcileUntilStable()
	kube.CheckCondition(w, cluster.Status.Conditions, "Credentials", metav1.ConditionFalse, "SecretNotFound", w.name+"/secrets")
	kube.CheckCondition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionFalse, "SecretNotFound", "create it with the key")

	if w.fakeHypervisor.checks > 0 {
		t.Errorf("the hypervisor was called %d times without credentials", w.fakeHypervisor.checks)
	}

	createSecrets(w, w.name)

	w.fakeHypervisor.machines = 1

	cluster = w.reconcileUntilStable()
	kube.CheckCondition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionTrue, "Ready", "")
	kube.CheckCondition(w, cluster.Status.Conditions, "Connected", metav1.ConditionTrue, "Connected", "Lab 9.2, 2 nodes online")

	w.fakeHypervisor.warnings = []string{"pve.example has no node pve33"}
	kube.CheckCondition(w, w.reconcileUntilStable().Status.Conditions, "Connected", metav1.ConditionTrue, "ConnectedWithWarnings", "; pve.example has no node pve33")

	w.fakeHypervisor.warnings = nil
	cluster = w.reconcileUntilStable()

	if w.fakeHypervisor.token != "s3cret" {
		t.Errorf("connected with the secret %q", w.fakeHypervisor.token)
	}

	status := &cluster.Status
	free := status.AvailableResources
	got := []any{
		status.Version, status.ConnectedNodes, status.Machines, len(status.Nodes),
		free.CPU, free.Memory.Value(), free.Storage.Value(),
	}

	// Free memory is reported in whole GiB, so that small changes do not change the status.
	if diff := cmp.Diff([]any{"9.2", int32(2), int32(1), 2, int64(6), int64(7 * gib), int64(90 * gib)}, got); diff != "" {
		t.Errorf("version, nodes, machines, nodes' statuses, free resources: -want +got:\n%s", diff)
	}

	if again := w.reconcileUntilStable(); again.ResourceVersion != cluster.ResourceVersion {
		t.Errorf("reconciles without a change updated the status:\n%s", cmp.Diff(cluster.Status, again.Status))
	}

	if result := w.reconcileOnce(); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("the next reconcile is after %s", result.RequeueAfter)
	}
}

func TestClusterErrors(t *testing.T) {
	t.Parallel()

	w := newClusterFixture(t)
	createSecrets(w, w.name)
	w.reconcileUntilStable()

	w.fakeHypervisor.err = newHypervisorError(hypervisor.Unavailable, "Unavailable", "https://pve.example:8006 does not answer")

	cluster := w.reconcileUntilStable()
	kube.CheckCondition(w, cluster.Status.Conditions, "Connected", metav1.ConditionFalse, "Unavailable", "does not answer")
	kube.CheckCondition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionFalse, "Unavailable", "does not answer")

	if result := w.reconcileOnce(); result.RequeueAfter <= 0 || result.RequeueAfter > 10*time.Second {
		t.Errorf("a hypervisor that is reachable again is checked after %s", result.RequeueAfter)
	}

	w.fakeHypervisor.err = newHypervisorError(hypervisor.Rejected, "PrivilegeMissing", "grant VM.Clone on /vms")

	cluster = w.reconcileUntilStable()
	kube.CheckCondition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionFalse, "PrivilegeMissing", "grant VM.Clone")

	w.fakeHypervisor.err, w.fakeHypervisor.nodes[1].Exclusions = nil, []string{"clones failed five times"}

	cluster = w.reconcileUntilStable()
	kube.CheckCondition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionTrue, "Ready", "")
	kube.CheckCondition(w, cluster.Status.Nodes[0].Conditions, step.Ready, metav1.ConditionTrue, "Usable", "")
	kube.CheckCondition(w, cluster.Status.Nodes[1].Conditions, step.Ready, metav1.ConditionFalse, "Excluded", "clones failed five times")

	w.fakeHypervisor.nodes[0].Online = false

	if connected := w.reconcileUntilStable().Status.ConnectedNodes; connected != 1 {
		t.Errorf("%d nodes are connected, but one of two is online", connected)
	}

	for i := range w.fakeHypervisor.nodes {
		w.fakeHypervisor.nodes[i].Online, w.fakeHypervisor.nodes[i].OfflineReason = false, "has no quorum"
	}

	cluster = w.reconcileUntilStable()
	kube.CheckCondition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionFalse, "NoNodeOnline", "no usable node of the cluster")

	if cluster.Status.ConnectedNodes != 0 {
		t.Errorf("%d nodes are connected, but none is online", cluster.Status.ConnectedNodes)
	}
}

// The connection of a cluster stays open until its last machine is deleted.
func TestClusterOutlivesItsMachines(t *testing.T) {
	t.Parallel()

	w := newClusterFixture(t)
	createSecrets(w, w.name)
	w.reconcileUntilStable()

	claim := newClaim(w.name, "one")
	claim.Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: w.name, VMID: "105", Node: "one"}
	createClaim(w, claim)
	deleteObject(w, w.getCluster())

	cluster := w.reconcileUntilStable()
	kube.CheckCondition(w, cluster.Status.Conditions, "MachinesGone", metav1.ConditionFalse, "MachinesLeft", "1 MachineClaim still has its machine here")

	if _, connected := w.reconciler.Clusters.Get(w.name); !connected || w.fakeHypervisor.openConnections != 1 {
		t.Error("the connection was closed while a machine needs it")
	}

	deleteObject(w, claim)
	w.reconcileOnce()

	err := env.Client.Get(t.Context(), client.ObjectKey{Name: w.name}, &v1alpha1.HypervisorCluster{})
	if !apierrors.IsNotFound(err) || w.fakeHypervisor.openConnections > 0 {
		t.Errorf("after its last machine: %d connections are open, the cluster: %v", w.fakeHypervisor.openConnections, err)
	}
}
