// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const guestKubeconfig = "guest-kubeconfig"

// workerFixture is a fixture whose machines are Nodes of a cluster. The cluster is the API server of the
// tests.
type workerFixture struct {
	*fixture

	pool *infrav1.KubevirtNodePool
}

// newWorkerFixture creates a pool of running machines with one Node each.
func newWorkerFixture(t *testing.T, replicas int32, timeout time.Duration) *workerFixture {
	t.Helper()

	w := &workerFixture{fixture: newFixture(t)}
	w.createKubeconfig()

	role := metav1.ObjectMeta{Namespace: w.namespace, Name: keep.RoleName}
	w.must(env.Client.Create(t.Context(), &rbacv1.Role{ObjectMeta: role}))
	w.must(env.Client.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: role, RoleRef: rbacv1.RoleRef{
		APIGroup: rbacv1.GroupName, Kind: "Role", Name: keep.RoleName,
	}}))

	w.pool = w.newNodePool("workers", replicas, "10.0.0.10-10.0.0.99")
	w.pool.Spec.Drain = &infrav1.NodeDrain{
		KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: guestKubeconfig, Key: "kubeconfig"},
		Timeout:             metav1.Duration{Duration: timeout},
	}
	w.createPool(w.pool)
	w.waitUntil("all machines are created", func() bool { return w.countAllocated() == int(replicas) })

	for _, m := range w.listMachines() {
		w.startMachine(&m)
	}

	w.waitUntil("all machines run", func() bool {
		return !slices.ContainsFunc(w.listMachines(), func(m infrav1.KubevirtMachine) bool { return m.Status.NodeName == "" })
	})

	return w
}

// createKubeconfig creates the Secret with the kubeconfig of the cluster.
func (w *workerFixture) createKubeconfig() {
	w.t.Helper()

	data, err := kubeproc.Kubeconfig(env.Config)
	w.must(err)
	w.must(env.Client.Create(w.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: guestKubeconfig}, Data: map[string][]byte{"kubeconfig": data},
	}))
}

// startMachine starts a machine and creates its Node.
func (w *workerFixture) startMachine(m *infrav1.KubevirtMachine) {
	w.t.Helper()

	instance := kubevirt.NewObject(kubevirt.InstanceKind())
	instance.SetNamespace(m.Namespace)
	instance.SetName(m.Name)
	instance.SetLabels(map[string]string{infrav1.LabelMachine: m.Name})
	instance.Object["spec"] = map[string]any{"domain": map[string]any{"devices": map[string]any{}}}
	w.must(env.Client.Create(w.t.Context(), instance))

	instance.Object["status"] = map[string]any{"nodeName": "host-a", "phase": "Running"}
	w.must(env.Client.Update(w.t.Context(), instance))

	env.CreateNode(w.t, m.Name, nil)
}

// createPod creates a pod on a machine. change may be nil.
func (w *workerFixture) createPod(node, name string, change func(*corev1.Pod)) {
	w.t.Helper()
	env.CreatePod(w.t, w.namespace, node, name, change)
}

func (w *workerFixture) hasPod(name string) bool {
	w.t.Helper()

	err := env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &corev1.Pod{})
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}

	return err == nil
}

// setBudget creates a PodDisruptionBudget that protects the pods of an app or allows some evictions.
func (w *workerFixture) setBudget(app string, allowed int32) {
	w.t.Helper()
	env.SetBudget(w.t, w.namespace, app, allowed)
}

// waitForDrainState waits until the machine that is being deleted reports this state of its Node, and returns
// the machine.
func (w *workerFixture) waitForDrainState(want string) *infrav1.KubevirtMachine {
	w.t.Helper()

	var (
		found *infrav1.KubevirtMachine
		last  string
	)

	defer func() {
		if found == nil {
			w.t.Logf("NodeDrained is %q", last)
		}
	}()

	w.waitUntil("NodeDrained is "+want, func() bool {
		for _, m := range w.listMachines() {
			c := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionNodeDrained)
			if m.DeletionTimestamp == nil || c == nil {
				continue
			}

			if last = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); strings.Contains(last, want) {
				found = &m

				return true
			}
		}

		return false
	})

	return found
}

// finishDeletions stops a machine's instance like KubeVirt, and waits until the given number of machines is
// left.
func (w *workerFixture) finishDeletions(left int) {
	w.t.Helper()
	w.waitUntil(fmt.Sprintf("%d machines are left", left), func() bool {
		machines := w.listMachines()
		for _, m := range machines {
			if m.DeletionTimestamp != nil && !w.hasObject(kubevirt.NewObject(kubevirt.InstanceKind()), m.Name) {
				continue
			}

			if m.DeletionTimestamp != nil {
				w.deleteInstance(m.Name)
			}
		}

		return len(machines) == left
	})
}

// deleteInstance ends the instance of a machine whose VirtualMachine is deleted, like KubeVirt.
func (w *workerFixture) deleteInstance(name string) {
	w.t.Helper()

	if w.hasObject(kubevirt.NewObject(kubevirt.VirtualMachineKind()), name) {
		return
	}

	instance := kubevirt.NewObject(kubevirt.InstanceKind())
	instance.SetNamespace(w.namespace)
	instance.SetName(name)
	w.must(client.IgnoreNotFound(env.Client.Delete(w.t.Context(), instance)))
}

// hasObject returns whether KubeVirt has an object for a machine.
func (w *workerFixture) hasObject(object *unstructured.Unstructured, name string) bool {
	w.t.Helper()

	err := env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, object)
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}

	return err == nil
}

func (w *workerFixture) isCordoned(name string) bool {
	w.t.Helper()

	node := env.GetNode(w.t, name)

	return node != nil && node.Spec.Unschedulable
}

func (w *workerFixture) scalePool(replicas int32) {
	w.t.Helper()
	patchObject(w.fixture, w.pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = replicas })
}

// A surplus machine is deleted after its Node is drained. The operator waits for pods that a
// PodDisruptionBudget protects, also over a restart of the operator. Pods that belong to the Node stay.
func TestWorkersAreDrained(t *testing.T) {
	t.Parallel()

	w := newWorkerFixture(t, 2, time.Hour)

	for _, m := range w.listMachines() {
		w.createPod(m.Name, "free-"+m.Name, nil)
		w.createPod(m.Name, "kept-"+m.Name, func(p *corev1.Pod) { p.Labels["app"] = "kept" })
		w.createPod(m.Name, "daemon-"+m.Name, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "d", Controller: new(true)},
			}
		})
	}

	w.setBudget("kept", 0)
	w.scalePool(1)

	m := w.waitForDrainState("False Draining: remaining: 1 pod (" + w.namespace + "/kept-")
	if !w.isCordoned(m.Name) || w.hasPod("free-"+m.Name) || !w.hasPod("kept-"+m.Name) || !w.hasPod("daemon-"+m.Name) {
		t.Errorf("cordoned %v, free pod exists %v, kept pod exists %v, DaemonSet's pod exists %v",
			w.isCordoned(m.Name), w.hasPod("free-"+m.Name), w.hasPod("kept-"+m.Name), w.hasPod("daemon-"+m.Name))
	}

	if condition := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionNodeDrained); !strings.Contains(condition.Message,
		"eviction refused for now: "+w.namespace+"/kept-"+m.Name+" by PodDisruptionBudget kept") {
		t.Errorf("message %q", condition.Message)
	}

	w.waitUntil("the pool counts the machine", func() bool {
		w.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(w.pool), w.pool))

		return w.pool.Status.DrainingReplicas == 1 && w.pool.Status.Replicas == 1
	})

	w.restart()
	w.waitForDrainState("False Draining")

	if len(w.listVirtualMachines()) != 2 || m.Status.Phase != infrav1.KubevirtMachineDraining {
		t.Errorf("%d VirtualMachines, phase %s", len(w.listVirtualMachines()), m.Status.Phase)
	}

	w.setBudget("kept", 1)
	w.finishDeletions(1)

	if w.hasPod("kept-"+m.Name) || !w.hasPod("daemon-"+m.Name) {
		t.Error("the kept pod exists, or the DaemonSet's pod was deleted")
	}

	if other := w.listMachines()[0].Name; w.isCordoned(other) || !w.hasPod("free-"+other) || !w.hasPod("kept-"+other) {
		t.Errorf("%s was drained, but is not deleted", other)
	}
}

// A drain that does not finish ends after its timeout, and reports the remaining pods.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()

	w := newWorkerFixture(t, 1, 3*time.Second)
	w.createPod(w.listMachines()[0].Name, "kept", nil)
	w.createPod(w.listMachines()[0].Name, "new", nil)
	w.setBudget("kept", 0)
	w.setBudget("new", kube.NotReconciled)
	w.scalePool(0)
	w.waitForDrainState("True DrainTimedOut: Node " + w.listMachines()[0].Name + " was not drained within 3s: remaining: 2 pods (" +
		w.namespace + "/kept, " + w.namespace + "/new); eviction refused for now: " +
		w.namespace + "/kept by PodDisruptionBudget kept, " + w.namespace + "/new by PodDisruptionBudget new")
	w.finishDeletions(0)

	if !w.hasPod("kept") || !w.hasPod("new") {
		t.Error("a pod was evicted")
	}

	w.waitUntil("the event is emitted", func() bool {
		var list eventsv1.EventList
		w.must(env.Client.List(t.Context(), &list, client.InNamespace(w.namespace)))

		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == "DrainTimedOut" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Note, w.namespace+"/kept")
		})
	})
}

// Without the Secret, the machine waits until a person creates the Secret. A machine without a Node is
// deleted at once, and so are all machines when their pool is deleted.
func TestDrainWithoutACluster(t *testing.T) {
	t.Parallel()

	w := newWorkerFixture(t, 3, time.Hour)
	// A person has removed the finalizer, too.
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: guestKubeconfig}}
	w.must(env.Client.Patch(t.Context(), secret, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	w.must(env.Client.Delete(t.Context(), secret))
	w.scalePool(2)

	m := w.waitForDrainState("read secret " + w.namespace + "/" + guestKubeconfig + ": it does not exist")
	w.must(env.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}))
	w.createKubeconfig()
	w.finishDeletions(2)

	for _, m := range w.listMachines() {
		w.createPod(m.Name, "pod-"+m.Name, nil)
	}

	names := w.listMachines()
	w.must(env.Client.Delete(t.Context(), w.pool))
	w.finishDeletions(0)

	for _, m := range names {
		if w.isCordoned(m.Name) || !w.hasPod("pod-"+m.Name) {
			t.Errorf("%s was drained, although its pool was deleted", m.Name)
		}
	}
}
