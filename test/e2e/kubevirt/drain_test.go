// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

const (
	guide         = "../../../docs/guides/kubevirt.md"
	drainRole     = "hyperfleet-drain"
	guestSecret   = "guest-kubeconfig"
	guestKey      = "kubeconfig"
	networkingSvc = "hyperfleet-networking"
)

// TestBlockedDrain checks a drain that a PodDisruptionBudget blocks: the machine's status names pod and budget,
// other machines do not wait, and the timeout ends the drain even if the operator is killed meanwhile. The
// operator's user in the workload cluster has the permissions of the guide.
func TestBlockedDrain(t *testing.T) {
	w := newFixture(t, kubevirt.Delays{Schedule: 5 * time.Millisecond, Boot: 20 * time.Millisecond, Stop: 20 * time.Millisecond})
	w.createKubeconfig()

	w.logf("two pools of workers; a PodDisruptionBudget protects all pods of one")

	stuck, free := newNodePool("stuck", 2, "192.168.0.10-192.168.0.19", "fd00::10-fd00::19"),
		newNodePool("free", 2, "192.168.0.20-192.168.0.29", "fd00::20-fd00::29")
	for _, pool := range []*infrav1.KubevirtNodePool{stuck, free} {
		pool.Spec.Drain = &infrav1.NodeDrain{
			KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: guestSecret, Key: guestKey},
			Timeout:             metav1.Duration{Duration: time.Hour},
		}
		w.create(pool)
	}

	w.eventually("all machines run", func() bool { return w.countReady() == 4 })

	for name, m := range w.listMachines() {
		env.CreateNode(t, name, map[string]string{"world": w.namespace})
		env.CreatePod(t, w.namespace, name, "on-"+name, func(pod *corev1.Pod) { pod.Labels["app"] = m.Labels[infrav1.LabelNodePool] })
	}

	w.create(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "never"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "stuck"}},
		},
	})

	w.logf("the pool is scaled down, and the drain is blocked")
	w.updatePool("stuck", func(spec *infrav1.KubevirtNodePoolSpec) { spec.Replicas = 1 })

	var leaving string

	w.eventually("the status names the pod and its budget", func() bool {
		for name := range w.listMachines() {
			if strings.Contains(w.describeDrain(name), "Draining: remaining: 1 pod ("+w.namespace+"/on-"+name+"); "+
				"eviction refused for now: "+w.namespace+"/on-"+name+" by PodDisruptionBudget never") {
				leaving = name
			}
		}

		return leaving != "" && w.getPool("stuck").Status.DrainingReplicas == 1
	})

	w.logf("other machines do not wait, and the operator is killed")
	w.kill()
	w.updatePool("free", func(spec *infrav1.KubevirtNodePoolSpec) { spec.Replicas = 1 })
	w.updatePool("stuck", func(spec *infrav1.KubevirtNodePoolSpec) { spec.Replicas = 2 })
	w.start()
	w.eventually("the other pool is scaled down, and this one has a new machine", func() bool {
		there, readyOf, all := w.listMachines(), map[string]int{}, map[string]int{}
		for _, m := range there {
			all[m.Labels[infrav1.LabelNodePool]]++

			if m.Status.Ready {
				readyOf[m.Labels[infrav1.LabelNodePool]]++
			}
		}

		return readyOf["stuck"] == 2 && readyOf["free"] == 1 && all["free"] == 1 &&
			there[leaving].Status.Phase == infrav1.KubevirtMachineDraining
	})

	w.logf("the drain times out")
	w.updatePool("stuck", func(spec *infrav1.KubevirtNodePoolSpec) { spec.Drain.Timeout.Duration = time.Second })
	w.eventually("the machine and its Node are deleted", func() bool {
		return w.listMachines()[leaving].Name == "" && !slices.Contains(w.listNodes(), leaving)
	})
	w.eventually("an event has the remaining pod", func() bool {
		return w.hasEvent("DrainTimedOut", leaving+" was not drained within 1s: remaining: 1 pod", "by PodDisruptionBudget never")
	})

	// Each pool has one Node left. The new machine has not joined.
	if nodes := w.listNodes(); len(nodes) != 2 {
		t.Errorf("Nodes are %v, want 2", nodes)
	}

	if w.countReady() != 3 {
		t.Errorf("%d machines are ready, want 3\n%s", w.countReady(), w.describe())
	}

	// If the pools are deleted, their machines are not drained.
	w.must(env.Client.DeleteAllOf(t.Context(), &infrav1.KubevirtNodePool{}, client.InNamespace(w.namespace)))
	w.eventually("all machines are deleted", func() bool { return len(w.listMachines()) == 0 })
}

// createKubeconfig creates the Secret with the kubeconfig of the workload cluster, with the permissions that the
// guide grants. The workload cluster is the tests' own API server.
func (w *fixture) createKubeconfig() {
	w.t.Helper()
	env.Apply(w.t, w.writeGuideRole())

	user := env.ServiceAccount(w.t, w.namespace, "drainer")
	drainer := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: "drainer"}
	operator := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "hyperfleet-system", Name: networkingSvc}

	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace}, Subjects: []rbacv1.Subject{drainer},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: drainRole},
	}
	env.Create(w.t, binding)
	w.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: guestSecret}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{guestSecret}, Verbs: []string{"get"}},
	}})
	w.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: guestSecret}, Subjects: []rbacv1.Subject{operator},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: guestSecret},
	})

	data, err := os.ReadFile(env.Kubeconfig(w.t, user))
	w.must(err)
	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: guestSecret}, Data: map[string][]byte{guestKey: data}})
}

// writeGuideRole writes the guide's ClusterRole to a file, and returns its path.
func (w *fixture) writeGuideRole() string {
	w.t.Helper()

	page, err := os.ReadFile(guide)
	w.must(err)

	for block := range strings.SplitSeq(string(page), "```") {
		if text, found := strings.CutPrefix(block, "yaml\n"); found && strings.Contains(text, "metadata: {name: "+drainRole+"}") {
			path := filepath.Join(w.t.TempDir(), "role.yaml")
			w.must(os.WriteFile(path, []byte(text), 0o600))

			return path
		}
	}

	w.t.Fatalf("%s has no ClusterRole %s", guide, drainRole)

	return ""
}

// listNodes returns the Nodes of the fixture's machines, including those of deleted machines.
func (w *fixture) listNodes() []string {
	w.t.Helper()

	var (
		list corev1.NodeList
		out  []string
	)

	w.must(env.Client.List(w.t.Context(), &list, client.MatchingLabels{"world": w.namespace}))

	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}

	return out
}

// describeDrain returns reason and message of a machine's drain condition.
func (w *fixture) describeDrain(name string) string {
	m := w.listMachines()[name]
	if c := apimeta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionNodeDrained); c != nil {
		return c.Reason + ": " + c.Message
	}

	return ""
}

// hasEvent returns true if an event with this reason contains all of the texts.
func (w *fixture) hasEvent(reason string, words ...string) bool {
	var events corev1.EventList
	w.must(env.Client.List(w.t.Context(), &events, client.InNamespace(w.namespace)))

	return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
		return e.Reason == reason && !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e.Message, word) })
	})
}
