// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// drained has a Mac go whose Node's drain hangs: nothing is taken from it until a budget lets its
// pod go, over a kill of the operator, and then it is wiped and its Node is gone. It gives what
// its condition said.
func (w *world) drained(name string) string {
	w.t.Helper()
	w.drains("macs")
	env.Pod(w.t, w.namespace, name, "pod", nil)
	env.Budget(w.t, w.namespace, "pod", 0)

	mac := &infrav1.ScalewayAppleSiliconMachine{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	if err := env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(mac), mac); err != nil {
		w.t.Fatal(err)
	}

	server := mac.Status.ServerID
	if err := env.Client.Delete(w.t.Context(), mac); err != nil {
		w.t.Fatal(err)
	}

	var said string

	held := func() bool {
		if err := env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(mac), mac); err != nil {
			w.t.Fatalf("the Mac did not wait for its drain: %v", err)
		}

		if c := apimeta.FindStatusCondition(mac.Status.Conditions, infrav1.ConditionNodeDrained); c != nil {
			said = c.Reason + ": " + c.Message
		}

		return strings.Contains(said, w.namespace+"/pod by PodDisruptionBudget pod")
	}
	w.eventually("the condition names pod and budget", held)
	w.kill()
	w.start()

	if !held() || w.installs(server) != 1 {
		w.t.Errorf("the server was installed %d times; the condition says %q", w.installs(server), said)
	}

	env.Budget(w.t, w.namespace, "pod", 1)
	w.leaves(name+" is wiped and given back, and its Node gone, and no other Mac came or went", func() bool {
		return apierrors.IsNotFound(env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(mac), mac)) &&
			len(w.macs()) == macs-1 && w.installs(server) == 2 && env.Node(w.t, name) == nil
	})

	return said
}

// leaves waits while a host is given back: what its status says is not on its disk then.
func (w *world) leaves(what string, holds func() bool) {
	w.t.Helper()
	w.wait(what, holds, func() {})
}

// scaled has the fleet order one Mac more, and give it back.
func (w *world) scaled() {
	w.t.Helper()

	const name = "macs-1"

	w.patchFleet("macs", func(spec *infrav1.HostFleetSpec) {
		spec.TemplateHost, spec.Replicas = "mac-08", new(int32(macs+1))
	})
	w.eventually("one more is ordered, and has its first boot", func() bool {
		for _, mac := range w.macs() {
			if mac.Name == name {
				return mac.Status.Bootstrapped
			}
		}

		return false
	})
	w.patchFleet("macs", func(spec *infrav1.HostFleetSpec) { spec.Replicas = new(int32(macs)) })
	w.leaves(name+" is given back, and no other", func() bool {
		left := w.macs()

		return len(left) == macs && !slices.ContainsFunc(left, func(m infrav1.ScalewayAppleSiliconMachine) bool {
			return m.Name == name || m.DeletionTimestamp != nil
		})
	})
	w.patchFleet("macs", func(spec *infrav1.HostFleetSpec) { spec.Replicas = nil })
}

// credential is what a Linux host joins its cluster with.
const credential = "/etc/hyperfleet/kubeconfig"

// nodes is the Secret with the way to the hosts' cluster, which is the tests' API server.
var nodes = infrav1.LocalSecretKeySelector{Name: "nodes", Key: "kubeconfig"}

// drains has a fleet drain its Nodes.
func (w *world) drains(fleet string) {
	w.t.Helper()
	w.patchFleet(fleet, func(spec *infrav1.HostFleetSpec) { spec.Drain = &infrav1.NodeDrain{KubeconfigSecretRef: nodes} })
}

// credentials has the operator make what a fleet's hosts join their cluster with.
func (w *world) credentials(fleet string) {
	w.t.Helper()

	data, err := os.ReadFile(env.Kubeconfig(w.t, env.Config))
	if err != nil {
		w.t.Fatal(err)
	}

	w.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: nodes.Name}, Data: map[string][]byte{nodes.Key: data}})
	w.patchFleet(fleet, func(spec *infrav1.HostFleetSpec) {
		spec.NodeCredentials = &infrav1.HostNodeCredentials{KubeconfigSecretRef: nodes}
	})
}

func (w *world) patchFleet(name string, change func(*infrav1.HostFleetSpec)) {
	w.t.Helper()

	fleet := w.fleet(name)
	base := fleet.DeepCopy()
	change(&fleet.Spec)

	if err := env.Client.Patch(w.t.Context(), fleet, client.MergeFrom(base)); err != nil {
		w.t.Fatal(err)
	}
}

// installs is how often a server was installed.
func (w *world) installs(id string) int {
	for _, server := range w.site.cloud.Servers() {
		if server.ID == id {
			return server.Installs
		}
	}

	return 0
}

// linuxes is how many Linux hosts there are.
func (w *world) linuxes() int {
	w.t.Helper()

	var list infrav1.LinuxMachineList
	if err := env.Client.List(w.t.Context(), &list, client.InNamespace(w.namespace)); err != nil {
		w.t.Fatal(err)
	}

	return len(list.Items)
}
