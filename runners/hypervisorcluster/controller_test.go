// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisorcluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/hypervisorcluster"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
}

// lab is a hypervisor that says what the test has it say.
type lab struct {
	hypervisor.Connection

	token    string
	err      error
	nodes    []hypervisor.Node
	machines int
	asked    int
	closed   bool
}

func (l *lab) Check(context.Context) (hypervisor.Info, error) {
	l.asked++

	return hypervisor.Info{Product: "Lab", Version: "9.2", Nodes: l.nodes}, l.err
}

func (l *lab) Capacity(context.Context) (hypervisor.Capacity, error) {
	out := hypervisor.Capacity{Nodes: l.nodes, Machines: l.machines}
	for _, node := range l.nodes {
		out.Free.Memory += node.Free.Memory
	}

	return out, nil
}

func (l *lab) Close() { l.closed = true }

// world is one cluster, whose hypervisor the test plays.
type world struct {
	*testing.T

	name     string
	lab      *lab
	clusters *hypervisorcluster.Reconciler
}

const gib = 1 << 30

func newWorld(t *testing.T) *world {
	t.Helper()

	w := &world{T: t, name: env.Namespace(t), lab: &lab{nodes: []hypervisor.Node{
		{Name: "one", Online: true, Free: hypervisor.Resources{Memory: 3*gib + 5}},
		{Name: "two", Online: true, Free: hypervisor.Resources{Memory: 4 * gib}},
	}}}
	w.clusters = &hypervisorcluster.Reconciler{
		Client: env.Client, Runner: &step.Runner{Client: env.Client, Controller: "hypervisorcluster"}, Interval: time.Minute,
		Clusters: &connect.Clusters{
			Secrets: &connect.Secrets{Reader: env.Client, OperatorNamespace: w.name},
			Factories: map[string]hypervisor.Factory{
				v1alpha1.ProviderProxmox: func(config hypervisor.Config, _ hypervisor.Options) (hypervisor.Connection, error) {
					w.lab.token = config.Credentials.TokenSecret

					return w.lab, nil
				},
			},
		},
	}

	key := func(name string) *v1alpha1.SecretValueSource {
		return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "proxmox", Key: name}}
	}

	env.Create(w, &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderProxmox, Endpoint: "https://pve.example:8006/api2/json",
			Credentials: v1alpha1.HypervisorCredentials{TokenID: key("id"), TokenSecret: key("secret")},
		},
	})

	return w
}

func (w *world) secret() {
	w.Helper()
	env.Create(w, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: "proxmox"},
		Data:       map[string][]byte{"id": []byte("ci@pve!fleet"), "secret": []byte("s3cret")},
	})
}

// passes until the cluster is as it stays, and gives it.
func (w *world) passes() *v1alpha1.HypervisorCluster {
	w.Helper()

	for range 3 {
		w.pass()
	}

	return w.read()
}

func (w *world) pass() reconcile.Result {
	w.Helper()

	result, err := w.clusters.Reconcile(w.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: w.name}})
	if err != nil {
		w.Fatalf("reconcile: %v", err)
	}

	return result
}

func (w *world) read() *v1alpha1.HypervisorCluster {
	w.Helper()

	var out v1alpha1.HypervisorCluster
	if err := env.Client.Get(w.Context(), client.ObjectKey{Name: w.name}, &out); err != nil {
		w.Fatal(err)
	}

	return &out
}

func refusal(kind hypervisor.Kind, reason, message string) error {
	return &hypervisor.Error{Kind: kind, Reason: reason, Message: message}
}

func TestClusterBecomesReady(t *testing.T) {
	t.Parallel()

	w := newWorld(t)

	cluster := w.passes()
	kube.Condition(w, cluster.Status.Conditions, "Credentials", metav1.ConditionFalse, "SecretNotFound", w.name+"/proxmox")
	kube.Condition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionFalse, "SecretNotFound", "create it with the key")

	if w.lab.asked > 0 {
		t.Errorf("the hypervisor was asked %d times without credentials", w.lab.asked)
	}

	w.secret()

	w.lab.machines = 1

	cluster = w.passes()
	kube.Condition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionTrue, "Ready", "")
	kube.Condition(w, cluster.Status.Conditions, "Connected", metav1.ConditionTrue, "Connected", "Lab 9.2, 2 nodes online")

	if w.lab.token != "s3cret" {
		t.Errorf("connected with the secret %q", w.lab.token)
	}

	status := &cluster.Status
	got := []any{status.Version, status.ConnectedNodes, status.Machines, status.AvailableResources.Memory.Value(), len(status.Nodes)}

	// Free memory is told in whole GiB: not every page of a machine is news.
	if diff := cmp.Diff([]any{"9.2", int32(2), int32(1), int64(7 * gib), 2}, got); diff != "" {
		t.Errorf("version, nodes, machines, memory, nodes' statuses: -want +got:\n%s", diff)
	}

	if again := w.passes(); again.ResourceVersion != cluster.ResourceVersion {
		t.Errorf("passes without news wrote:\n%s", cmp.Diff(cluster.Status, again.Status))
	}

	if result := w.pass(); result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("the next look is after %s", result.RequeueAfter)
	}
}

func TestClusterInTrouble(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.secret()
	w.passes()

	w.lab.err = refusal(hypervisor.Unavailable, "Unavailable", "https://pve.example:8006 does not answer")

	cluster := w.passes()
	kube.Condition(w, cluster.Status.Conditions, "Connected", metav1.ConditionFalse, "Unavailable", "does not answer")
	kube.Condition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionFalse, "Unavailable", "does not answer")

	if result := w.pass(); result.RequeueAfter <= 0 || result.RequeueAfter > 10*time.Second {
		t.Errorf("a hypervisor that is back is seen after %s", result.RequeueAfter)
	}

	w.lab.err = refusal(hypervisor.Rejected, "PrivilegeMissing", "grant VM.Clone on /vms")

	cluster = w.passes()
	kube.Condition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionFalse, "PrivilegeMissing", "grant VM.Clone")

	w.lab.err, w.lab.nodes[1].SetAside = nil, []string{"clones failed five times"}

	cluster = w.passes()
	kube.Condition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionTrue, "Ready", "")
	kube.Condition(w, cluster.Status.Nodes[0].Conditions, step.Ready, metav1.ConditionTrue, "Usable", "")
	kube.Condition(w, cluster.Status.Nodes[1].Conditions, step.Ready, metav1.ConditionFalse, "SetAside", "clones failed five times")

	for i := range w.lab.nodes {
		w.lab.nodes[i].Online, w.lab.nodes[i].Trouble = false, "has no quorum"
	}

	cluster = w.passes()
	kube.Condition(w, cluster.Status.Conditions, step.Ready, metav1.ConditionFalse, "NoNodeOnline", "none of the cluster's usable nodes")

	if cluster.Status.ConnectedNodes != 0 {
		t.Errorf("%d nodes are connected, and none is online", cluster.Status.ConnectedNodes)
	}
}

// A cluster's connection is needed until its last machine is gone.
func TestClusterOutlivesItsMachines(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.secret()
	w.passes()

	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.name, Name: "one"},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"},
			WorkloadConfig: v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{
				GitHub: &v1alpha1.GitHubActionsConfig{Organization: "acme"},
			}},
		},
	}
	env.Create(w, claim)

	claim.Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: w.name, VMID: "105", Node: "one"}
	if err := env.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	if err := env.Client.Delete(t.Context(), w.read()); err != nil {
		t.Fatal(err)
	}

	cluster := w.passes()
	kube.Condition(w, cluster.Status.Conditions, "MachinesGone", metav1.ConditionFalse, "MachinesLeft", "1 MachineClaim still has its machine here")

	if _, connected := w.clusters.Clusters.Get(w.name); !connected || w.lab.closed {
		t.Error("the connection was closed while a machine needs it")
	}

	if err := env.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	w.pass()

	err := env.Client.Get(t.Context(), client.ObjectKey{Name: w.name}, &v1alpha1.HypervisorCluster{})
	if !apierrors.IsNotFound(err) || !w.lab.closed {
		t.Errorf("after its last machine: closed = %v, the cluster: %v", w.lab.closed, err)
	}
}
