// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"testing"

	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// restore creates an object of a backup again, as Velero does: with its labels and annotations, and without its UID.
func (s *site) restore(saved client.Object, namespace, name string) {
	s.t.Helper()

	restored, ok := saved.DeepCopyObject().(client.Object)
	if !ok {
		s.t.Fatalf("a %T is no object", saved)
	}

	restored.SetNamespace(namespace)
	restored.SetName(name)
	restored.SetResourceVersion("")
	restored.SetUID("")
	restored.SetFinalizers(nil)
	restored.SetOwnerReferences(nil)

	if err := env.Client.Create(s.t.Context(), restored); err != nil {
		s.t.Fatal(err)
	}
}

// A VirtualMachine whose claim is gone comes back from a backup, also under another name and in another namespace. The operator
// finds and deletes the first with its Secret. It neither lists nor changes the copies, and they block neither a name nor an
// address.
func TestRestoredVirtualMachine(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)
	spec := newMachineSpec()
	spec.Network = hypervisor.NetworkOptions{AddressNetwork: "machines", Addresses: []string{"192.0.2.7/24"}}
	spec = s.advanceTo(p, spec, hypervisor.StateRunning)
	ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}
	key, vm := s.findVM(spec.ID)
	secret := s.secret()

	remove := func() {
		t.Helper()

		if err := conformance.Delete(t.Context(), p, ref); err != nil {
			t.Fatal(err)
		}
	}

	remove()

	elsewhere := env.Namespace(t)
	copies := []client.ObjectKey{{Namespace: s.namespace, Name: "copy-of-" + key.Name}, {Namespace: elsewhere, Name: key.Name}}

	for _, to := range append(copies, key) {
		s.restore(vm, to.Namespace, to.Name)
		s.restore(secret, to.Namespace, to.Name)
	}

	found, err := s.newProvider(s.config(), env.Config).List(t.Context())
	if err != nil || len(found) != 1 || found[0].Name != key.Name || found[0].Owner.UID != spec.Owner.UID {
		t.Fatalf("want only machine %s listed, got %+v (%v)", key.Name, found, err)
	}

	remove()

	later := newMachineSpec()
	later.Owner.UID, later.Network = "c0000000-0000-4000-8000-000000000002", spec.Network
	s.eventually("another claim gets the name and the address", func() bool {
		_, err := conformance.Advance(t.Context(), p, &later, newSeed)

		return err == nil && later.ID != 0
	})
	s.advanceTo(p, later, hypervisor.StateRunning)

	for _, name := range copies {
		var left virtv1.VirtualMachine
		if err := env.Client.Get(t.Context(), name, &left); err != nil || left.DeletionTimestamp != nil {
			t.Errorf("copy %s was deleted (%v)", name, err)
		}
	}

	if state := s.inspect(); len(state.Seeds) != 2 {
		t.Errorf("want the Secrets of the copy and of the new machine, got %v", state.Seeds)
	}
}
