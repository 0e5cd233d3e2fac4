// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

// setUser sets the user that the operator uses from now on.
func (w *workerFixture) setUser(config *rest.Config) {
	w.t.Helper()

	data, err := kubeproc.Kubeconfig(config)
	w.must(err)

	secret := &corev1.Secret{}
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: guestKubeconfig}, secret))
	secret.Data["kubeconfig"] = data
	w.must(env.Client.Update(w.t.Context(), secret))
}

// waitForNodeLeftEvent waits for the event that a Node remains.
func (w *workerFixture) waitForNodeLeftEvent(words string) {
	w.t.Helper()
	w.waitUntil("the event is emitted", func() bool {
		var list eventsv1.EventList
		w.must(env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)))

		return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Reason == "NodeNotDeleted" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Note, words)
		})
	})
}

// The Node of a deleted machine is deleted too. It stays while the machine exists, and another Node with
// the same name stays.
func TestNodeIsDeletedWithMachine(t *testing.T) {
	t.Parallel()

	w := newWorkerFixture(t, 3, time.Hour)
	w.scalePool(2)

	m := w.waitForDrainState("True Drained")
	if env.GetNode(w.t, m.Name) == nil {
		t.Error("the Node was deleted before the machine")
	}

	w.finishDeletions(2)

	if env.GetNode(w.t, m.Name) != nil {
		t.Error("the Node of a deleted machine is left")
	}

	for _, other := range w.listMachines() {
		if env.GetNode(w.t, other.Name) == nil {
			t.Errorf("Node %s was deleted, but its machine exists", other.Name)
		}
	}

	w.scalePool(1)

	m = w.waitForDrainState("True Drained")
	w.must(env.Client.Delete(t.Context(), env.GetNode(w.t, m.Name)))

	another := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	w.must(env.Client.Create(t.Context(), another))
	t.Cleanup(func() { _ = env.Client.Delete(t.Context(), another) })
	w.finishDeletions(1)

	if env.GetNode(w.t, m.Name) == nil {
		t.Error("another Node with the machine's name was deleted")
	}
}

// A user without permission to delete Nodes does not block the deletion of a machine, and the event names
// the missing permission.
func TestNodeDeletionWithoutPermission(t *testing.T) {
	t.Parallel()

	w := newWorkerFixture(t, 1, time.Hour)
	name := w.listMachines()[0].Name
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
	}}
	env.Create(t, role)
	env.Create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: w.namespace}},
	})
	w.setUser(env.User(t, w.namespace))
	w.scalePool(0)
	w.waitForDrainState("True Drained")
	w.finishDeletions(0)
	w.waitForNodeLeftEvent("Node " + name + " remains after its machine was deleted: delete the Node: delete node " + name +
		": the kubeconfig's user has no permission: grant it `delete` on nodes")

	if env.GetNode(w.t, name) == nil {
		t.Error("the Node was deleted")
	}
}

// An unreachable cluster delays the deletion of a machine by one minute.
func TestNodeOfUnreachableCluster(t *testing.T) {
	t.Parallel()

	w := newWorkerFixture(t, 1, time.Hour)
	name := w.listMachines()[0].Name
	w.scalePool(0)
	w.waitForDrainState("True Drained")
	w.setUser(&rest.Config{Host: "https://127.0.0.1:1"})

	w.waitUntil("the machine reports what it waits for", func() bool {
		w.deleteInstance(name)

		for _, m := range w.listMachines() {
			c := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionNodeDeleted)
			if c != nil && c.Reason != "" && strings.Contains(c.Message, "deletion of the machine continues in") {
				return true
			}
		}

		return false
	})

	// A minute later.
	m := w.listMachines()[0]
	before := m.DeepCopy()
	meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionVMDeleted).LastTransitionTime = metav1.NewTime(time.Now().Add(-time.Minute))
	w.must(env.Client.Status().Patch(t.Context(), &m, client.MergeFrom(before)))
	w.finishDeletions(0)
	w.waitForNodeLeftEvent("Node " + name + " remains after its machine was deleted: delete the Node")

	if env.GetNode(w.t, name) == nil {
		t.Error("the Node was deleted")
	}
}
