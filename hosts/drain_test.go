// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const nodesKubeconfig = "nodes"

// newNodeFixture returns a fixture whose hosts are Nodes of the test's own API server, and are
// drained with a timeout.
func newNodeFixture(t *testing.T, timeout time.Duration, names ...string) *fixture {
	t.Helper()

	w := newFixture(t, 0, rollout(1))
	w.writeKubeconfig(env.Config)
	w.patchFleet(func(spec *infrav1.HostFleetSpec) {
		spec.Drain = &infrav1.NodeDrain{
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: nodesKubeconfig, Key: "kubeconfig"},
			Timeout:             metav1.Duration{Duration: timeout},
		}
	})

	for _, name := range names {
		w.createHost(name)
		env.CreateNode(t, name, nil)
	}

	w.startOperator()
	w.waitUntilConverged(len(names))

	return w
}

// writeKubeconfig creates or updates the Secret with the cluster's kubeconfig.
func (w *fixture) writeKubeconfig(config *rest.Config) {
	w.t.Helper()

	data, err := kubeproc.Kubeconfig(config)
	w.must(err)

	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: nodesKubeconfig}, Data: map[string][]byte{"kubeconfig": data},
	}

	err = env.Client.Create(w.t.Context(), secret)
	if apierrors.IsAlreadyExists(err) {
		err = env.Client.Update(w.t.Context(), secret)
	}

	w.must(err)
}

func (w *fixture) delete(obj client.Object) {
	w.t.Helper()
	obj.SetNamespace(w.namespace)

	w.must(env.Client.Delete(w.t.Context(), obj))
}

func (w *fixture) deleteHost(name string) {
	w.t.Helper()
	w.delete(&infrav1.LinuxMachine{ObjectMeta: metav1.ObjectMeta{Name: name}})
}

// waitForCondition waits until a condition of a host contains a text.
func (w *fixture) waitForCondition(name, condition, want string) {
	w.t.Helper()
	w.eventually(condition+" of "+name+" contains "+want, func() string {
		last := "nothing"
		if c := meta.FindStatusCondition(w.getHost(name).Status.Conditions, condition); c != nil {
			last = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}

		if strings.Contains(last, want) {
			return ""
		}

		return last
	})
}

// waitForDeletion waits until a host's object is deleted.
func (w *fixture) waitForDeletion(name string) {
	w.t.Helper()
	w.eventually(name+" is gone", func() string {
		for _, m := range w.listHosts() {
			if m.Name == name {
				return fmt.Sprintf("%+v", m.Status)
			}
		}

		return ""
	})
}

// waitForEvent waits for an event.
func (w *fixture) waitForEvent(object, reason string) {
	w.t.Helper()
	w.eventually(object+" has the event "+reason, func() string {
		if got := w.eventReasons(object); !slices.Contains(got, reason) {
			return fmt.Sprint(got)
		}

		return ""
	})
}

// drainUserConfig returns the configuration of a user who may drain an empty Node but not delete
// it.
func (w *fixture) drainUserConfig() *rest.Config {
	w.t.Helper()

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
	}}
	env.Create(w.t, role)
	env.Create(w.t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: w.namespace}},
	})

	return env.User(w.t, w.namespace)
}

func (w *fixture) hasPod(name string) bool {
	w.t.Helper()

	err := env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, &corev1.Pod{})
	if client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}

	return err == nil
}

// allowEviction makes a budget allow the eviction of a pod. An eviction that a restart interrupted
// may have used the budget up although the pod still exists. A real cluster's controller restores
// the budget after two minutes.
func (w *fixture) allowEviction(budget, pod string) {
	w.t.Helper()
	w.eventually("pod "+pod+" is evicted", func() string {
		if !w.hasPod(pod) {
			return ""
		}

		of := &policyv1.PodDisruptionBudget{}
		w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: budget}, of))

		if of.Status.DisruptionsAllowed == 0 {
			env.SetBudget(w.t, w.namespace, budget, 1)
		}

		return fmt.Sprintf("the pod exists: %+v", of.Status)
	})
}

// A deleted host is released after its Node is drained, and then its Node is deleted. The drain
// waits for a PodDisruptionBudget, even across a restart of the operator. Other hosts are not
// affected.
func TestHostsAreDrained(t *testing.T) {
	t.Parallel()

	const leaves, stays = "drained-leaves", "drained-stays"

	w := newNodeFixture(t, time.Hour, leaves, stays)

	for _, name := range []string{leaves, stays} {
		env.CreatePod(t, w.namespace, name, "free-"+name, nil)
		env.CreatePod(t, w.namespace, name, "kept-"+name, func(p *corev1.Pod) { p.Labels["app"] = "kept" })
	}

	env.SetBudget(t, w.namespace, "kept", 0)
	w.deleteHost(leaves)
	w.waitForCondition(leaves, infrav1.ConditionNodeDrained, fmt.Sprintf(
		"False Draining: remaining: 1 pod (%[1]s/kept-%[2]s); eviction refused for now: %[1]s/kept-%[2]s by PodDisruptionBudget kept",
		w.namespace, leaves))

	if node := env.GetNode(t, leaves); node == nil || !node.Spec.Unschedulable || w.hasPod("free-"+leaves) || !w.hasPod("kept-"+leaves) {
		t.Errorf("node %+v, free pod exists %v, kept pod exists %v", node, w.hasPod("free-"+leaves), w.hasPod("kept-"+leaves))
	}

	started := w.getHost(leaves).Status.Drain.StartedAt
	w.restart("agent one")

	if now := w.getHost(leaves).Status.Drain; !now.StartedAt.Equal(&started) || now.EndedAt != nil {
		t.Errorf("drain after a restart: %+v, want it to have started at %s", now, started)
	}

	w.allowEviction("kept", "kept-"+leaves)
	w.waitForDeletion(leaves)

	if env.GetNode(t, leaves) != nil || w.hasPod("kept-"+leaves) {
		t.Error("the Node or its pod still exists")
	}

	if node := env.GetNode(t, stays); node == nil || node.Spec.Unschedulable || !w.hasPod("free-"+stays) || !w.hasPod("kept-"+stays) {
		t.Errorf("%s was drained although it is not deleted", stays)
	}
}

// A drain that hangs ends after its timeout and reports what was left. The Node is deleted
// nevertheless.
func TestDrainOfAHostThatHangs(t *testing.T) {
	t.Parallel()

	const name = "hangs"

	w := newNodeFixture(t, time.Second, name)
	env.CreatePod(t, w.namespace, name, "kept", nil)
	env.SetBudget(t, w.namespace, "kept", 0)
	w.deleteHost(name)
	w.waitForDeletion(name)
	w.waitForEvent(fleetName, "DrainTimedOut")

	if env.GetNode(t, name) != nil || !w.hasPod("kept") {
		t.Errorf("the Node exists: %v; its pod exists: %v", env.GetNode(t, name) != nil, w.hasPod("kept"))
	}
}

// Without access to its cluster a host waits and reports for how long. If the user may not delete
// Nodes, the Node stays and an event names it.
func TestDrainOfAHostWithoutItsCluster(t *testing.T) {
	t.Parallel()

	const name = "forbidden"

	w := newNodeFixture(t, time.Hour, name)
	w.writeKubeconfig(env.ServiceAccount(t, w.namespace, "nobody"))
	w.deleteHost(name)
	w.waitForCondition(name, infrav1.ConditionNodeDrained, "the API server of the Node's cluster returned 403 Forbidden")
	w.waitForCondition(name, infrav1.ConditionNodeDrained, "deletion of the host continues in 59m")

	w.writeKubeconfig(w.drainUserConfig())
	w.waitForDeletion(name)
	w.waitForEvent(fleetName, "NodeNotDeleted")

	if node := env.GetNode(t, name); node == nil || !node.Spec.Unschedulable {
		t.Errorf("node %+v: want it cordoned", node)
	}
}

// A host without a fleet, or without a first boot, is released without a drain.
func TestHostsWithoutDrain(t *testing.T) {
	t.Parallel()

	const booted, fresh = "orphan", "never-booted"

	w := newNodeFixture(t, time.Hour, booted)
	env.CreatePod(t, w.namespace, booted, "pod", nil)
	w.patchFleet(func(spec *infrav1.HostFleetSpec) { spec.Paused = true })
	w.createHost(fresh)
	env.CreateNode(t, fresh, nil)
	w.waitForCondition(fresh, infrav1.ConditionBootstrapped, "Paused")
	w.deleteHost(fresh)
	w.waitForDeletion(fresh)
	w.delete(&infrav1.HostFleet{ObjectMeta: metav1.ObjectMeta{Name: fleetName}})
	w.waitForCondition(booted, infrav1.ConditionFleetFound, "FleetNotFound")
	w.deleteHost(booted)
	w.waitForDeletion(booted)

	for _, name := range []string{booted, fresh} {
		if node := env.GetNode(t, name); node == nil || node.Spec.Unschedulable {
			t.Errorf("node of %s: %+v; want it left alone", name, node)
		}
	}

	if !w.hasPod("pod") {
		t.Error("the pod was evicted")
	}
}
