// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/test/fixes"
)

// restoreKind is a way in which objects lose their statuses.
type restoreKind string

const (
	// restoredUIDs is a restore that creates the objects again, with other UIDs and their old owners.
	restoredUIDs restoreKind = "other UIDs"
	// restoredUnowned is a restore that also leaves the owners out.
	restoredUnowned restoreKind = "other UIDs and no owners"
	// restoredInPlace empties the statuses of the same objects.
	restoredInPlace restoreKind = "same UIDs"
)

// restoreWithoutStatus brings the objects to the state after a restore without statuses. No controller of the
// area may run. VirtualMachines and Secrets stay as they are.
func (w *fixture) restoreWithoutStatus(kind restoreKind) {
	w.t.Helper()

	var (
		pools     infrav1.KubevirtNodePoolList
		templates infrav1.KubevirtMachineTemplateList
		machines  infrav1.KubevirtMachineList
	)

	for _, list := range []client.ObjectList{&pools, &templates, &machines} {
		w.must(env.Client.List(w.t.Context(), list, client.InNamespace(w.namespace)))
	}

	for i := range machines.Items { // the machines first, as their names sort before those of pools
		w.restoreObject(&machines.Items[i], kind, func() { machines.Items[i].Status = infrav1.KubevirtMachineStatus{} })
	}

	for i := range templates.Items {
		w.restoreObject(&templates.Items[i], kind, nil)
	}

	for i := range pools.Items {
		w.restoreObject(&pools.Items[i], kind, func() { pools.Items[i].Status = infrav1.KubevirtNodePoolStatus{} })
	}
}

// restoreObject restores one object. empty empties its status. It is nil for a kind without status.
func (w *fixture) restoreObject(object client.Object, kind restoreKind, empty func()) {
	w.t.Helper()

	if empty != nil {
		empty()
	}

	if kind == restoredInPlace {
		if empty != nil {
			w.must(env.Client.Status().Update(w.t.Context(), object))
		}

		return
	}

	finalizers := object.GetFinalizers()
	current, _ := object.DeepCopyObject().(client.Object)
	w.must(env.Client.Patch(w.t.Context(), current,
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	w.must(env.Client.Delete(w.t.Context(), current))

	object.SetUID("")
	object.SetResourceVersion("")
	object.SetFinalizers(finalizers)

	if kind == restoredUnowned {
		object.SetOwnerReferences(nil)
	}

	w.must(env.Client.Create(w.t.Context(), object))
}

// configuredAddresses returns the addresses with which each VirtualMachine is configured, by its name.
func (w *fixture) configuredAddresses() map[string]string {
	w.t.Helper()

	out := map[string]string{}

	for _, vm := range w.listVirtualMachines() {
		var secret corev1.Secret

		w.must(env.Client.Get(w.t.Context(),
			client.ObjectKey{Namespace: w.namespace, Name: kubevirt.NetworkDataSecret(&vm)}, &secret))

		network, _, err := netdata.Parse(secret.Data[kubevirt.NetworkDataKey])
		w.must(err)

		for _, link := range network.Links {
			out[vm.GetName()] += fmt.Sprint(link.Addresses)
		}
	}

	return out
}

// requireTruth fails the test unless each machine's status has the addresses of its VirtualMachine, and no
// address is configured twice.
func (w *fixture) requireTruth() {
	w.t.Helper()

	configured, owners := w.configuredAddresses(), map[string]string{}

	for name, addresses := range configured {
		if other := owners[addresses]; other != "" {
			w.t.Errorf("%s and %s are configured with %s", name, other, addresses)
		}

		owners[addresses] = name
	}

	for _, m := range w.listMachines() {
		if recorded := fmt.Sprint(m.Status.AllocatedBootstrapAddresses["eno101"]); recorded != configured[m.Name] {
			w.t.Errorf("%s has %s in its status and is configured with %s", m.Name, recorded, configured[m.Name])
		}
	}
}

// vmUIDs returns the UIDs of the VirtualMachines by name.
func (w *fixture) vmUIDs() map[string]types.UID {
	out := map[string]types.UID{}
	for _, vm := range w.listVirtualMachines() {
		out[vm.GetName()] = vm.GetUID()
	}

	return out
}

// After a restore without statuses, the machines keep their VirtualMachines and addresses, and a new machine
// gets an address that no VirtualMachine has.
func TestRestoreWithoutStatus(t *testing.T) {
	t.Parallel()

	for _, kind := range []restoreKind{restoredUIDs, restoredUnowned, restoredInPlace} {
		t.Run(strings.ReplaceAll(string(kind), " ", "-"), func(t *testing.T) {
			t.Parallel()

			w := newFixture(t)
			pool := w.newNodePool("workers", 3, "10.0.0.10-10.0.0.19")
			w.createPool(pool)
			w.waitUntil("three machines have addresses", func() bool { return w.countAllocated() == 3 })

			// The first address is free, so an allocation that does not look gives it to the next one who asks.
			first := ""
			for name, addresses := range w.configuredAddresses() {
				if addresses == "[10.0.0.10/16]" {
					first = name
				}
			}

			patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = 2 })
			w.must(env.Client.Delete(t.Context(), w.machineNamed(first)))
			w.waitUntil("two machines are left", func() bool { return len(w.listMachines()) == 2 && w.countAllocated() == 2 })
			w.stopArea()

			before, configured := w.vmUIDs(), w.configuredAddresses()

			w.restoreWithoutStatus(kind)
			patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = 4 })
			w.startArea()
			w.waitUntil("four machines have addresses", func() bool { return w.countAllocated() == 4 })
			w.requireTruth()

			for name, uid := range before {
				if after := w.vmUIDs()[name]; after != uid || w.configuredAddresses()[name] != configured[name] {
					t.Errorf("VirtualMachine %s was %s with %s, and is %s with %s", name, uid, configured[name], after,
						w.configuredAddresses()[name])
				}
			}
		})
	}
}

func (w *fixture) machineNamed(name string) *infrav1.KubevirtMachine {
	w.t.Helper()

	m := &infrav1.KubevirtMachine{}
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, m))

	return m
}

// If the addresses of a restored VirtualMachine cannot be read back, the machine says how to read them, and
// its pool allocates nothing until then. The test runs the commands of the message.
func TestUnreadAddresses(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../docs/operate/restore.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		name string
		// lose makes the addresses unreadable. The page names the command that reads them then with this resource.
		lose     func(w *fixture, secret *corev1.Secret)
		resource string
	}{
		{"the Secret is gone", func(w *fixture, secret *corev1.Secret) {
			w.must(env.Client.Delete(w.t.Context(), secret))
			w.createInstance("10.0.0.10")
		}, "virtualmachineinstance"},
		{"the Secret has network data that the operator cannot parse", func(w *fixture, secret *corev1.Secret) {
			w.must(env.Client.Delete(w.t.Context(), secret)) // it is immutable
			w.must(env.Client.Create(w.t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: secret.Name},
				StringData: map[string]string{kubevirt.NetworkDataKey: "10.0.0.10"},
			}))
		}, "secret"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			w := newFixture(t)
			pool := w.newNodePool("workers", 1, "10.0.0.10-10.0.0.19")
			w.createPool(pool)
			w.waitUntil("the machine has an address", func() bool { return w.countAllocated() == 1 })
			w.stopArea()

			// A VirtualMachine of an older version has no annotations.
			vm := &w.listVirtualMachines()[0]
			secret := kubevirt.NetworkDataSecret(vm)
			w.must(env.Client.Patch(t.Context(), vm, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`))))
			tc.lose(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: secret}})
			w.restoreWithoutStatus(restoredUIDs)
			patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = 2 })
			w.startArea()

			message := w.waitForUnknown(vm.GetName())

			// The message has the commands of docs/operate/restore.md with all names.
			commands := regexp.MustCompile(`(?m)^kubectl \w+ (?:secret|virtualmachine).*$`).FindAllString(string(page), -1)
			for _, command := range commands {
				named := strings.NewReplacer("SECRET", secret, "NAMESPACE", w.namespace, "MACHINE", vm.GetName()).Replace(command)
				if strings.Contains(command, "get "+tc.resource+" ") != strings.Contains(message, named) && !strings.Contains(command, "annotate") {
					t.Errorf("the command %q of the page: %s", named, message)
				}
			}

			printed := fixes.Kubectl(t, env, message, "ADDRESS/PREFIXLENGTH", "10.0.0.10/16")
			if len(commands) != 3 || !strings.Contains(printed[0], "10.0.0.10") {
				t.Errorf("the first command does not print the address: %s", printed)
			}

			w.waitUntil("both machines have addresses", func() bool { return w.countAllocated() == 2 })
			w.requireTruth()
		})
	}
}

// createInstance creates the instance of the VirtualMachine, whose guest reports an address.
func (w *fixture) createInstance(address string) {
	w.t.Helper()

	instance := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
		"spec": map[string]any{"domain": map[string]any{"devices": map[string]any{}}},
	}}
	instance.SetNamespace(w.namespace)
	instance.SetName(w.listVirtualMachines()[0].GetName())
	w.must(env.Client.Create(w.t.Context(), instance))
	w.must(env.Client.Patch(w.t.Context(), instance, client.RawPatch(types.MergePatchType,
		[]byte(`{"status":{"interfaces":[{"ipAddress":"`+address+`"}]}}`))))
}

// waitForUnknown waits until a machine says that the addresses of a VirtualMachine are unknown, and another one waits
// for them. It returns the first message.
func (w *fixture) waitForUnknown(vm string) string {
	w.t.Helper()

	message := ""

	w.waitUntil("both machines say why they wait", func() bool {
		unread := false

		for _, m := range w.listMachines() {
			c := meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionAddressesAllocated)

			switch {
			case c == nil:
			case c.Reason == "AddressesNotRead":
				unread = true
			case c.Reason == "AddressesUnknown" && strings.Contains(c.Message, vm):
				message = c.Message
			}
		}

		return unread && message != ""
	})

	return message
}

// A machine that is deleted right after a restore is drained, and its Node is deleted, although its status no
// longer says that it ran.
func TestRestoredMachineIsDrained(t *testing.T) {
	t.Parallel()

	w := newWorkerFixture(t, 2, time.Minute)
	w.stopArea()

	gone := w.listMachines()[0].Name

	w.restoreWithoutStatus(restoredInPlace)
	patchObject(w.fixture, w.pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = 1 })
	w.must(env.Client.Delete(t.Context(), w.machineNamed(gone)))
	w.startArea()
	w.finishDeletions(1)

	if env.GetNode(t, gone) != nil || len(w.listVirtualMachines()) != 1 {
		t.Errorf("Node %s was left, or not its VirtualMachine alone is gone", gone)
	}
}
