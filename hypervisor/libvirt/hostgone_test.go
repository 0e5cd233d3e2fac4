// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"slices"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	testlibvirt "github.com/hyperfleet/hyperfleet/test/libvirt"
)

// createBoth creates a machine that libvirt forgets when it is off, and one with a definition.
func (f *fleet) createBoth(p hypervisor.Provider, node string) []hypervisor.MachineRef {
	f.Helper()

	defined := f.newSpec()
	defined.Shape.Linked = false

	return []hypervisor.MachineRef{f.create(p, node), f.createFrom(p, defined, node)}
}

// wantGone checks that the machines count as gone, so that their claims end.
func (f *fleet) wantGone(p hypervisor.Provider, refs []hypervisor.MachineRef) {
	f.Helper()

	for _, ref := range refs {
		_, err := p.Get(f.Context(), ref)
		f.wantKind("get", err, hypervisor.NotFound)
		f.wantKind("delete", p.Delete(f.Context(), ref), hypervisor.NotFound)
	}
}

// wantRunning checks that the machine runs on the host.
func (f *fleet) wantRunning(p hypervisor.Provider, ref hypervisor.MachineRef, node string) {
	f.Helper()

	if m, err := p.Get(f.Context(), ref); err != nil || m.State != hypervisor.StateRunning || m.Node != node {
		f.Errorf("want a machine that runs on %s, got %+v (%v)", node, m, err)
	}
}

// A host that never returns is removed from the cluster. Then its machines count as gone, and a machine that was placed there is
// placed on another host. If the host returns after all, what it has of the machines is found and deleted.
func TestRemovedHost(t *testing.T) {
	t.Parallel()

	f := newFleet(t, map[string]int64{"kept": 0, "lost": 0})
	before := f.connect()
	onKept, onLost := f.create(before, "kept"), f.createBoth(before, "lost")

	placed := f.newSpec()
	reserved, err := before.Reserve(t.Context(), placed)
	f.must(err)

	placed.ID, placed.Node = reserved.ID, "lost"

	f.must(f.hosts["lost"].Kill())
	f.eventually("the host is reported as offline", func() bool { return len(f.offline(before)) == 1 })

	// The last list of the host's machines is used until it is too old.
	for _, ref := range onLost {
		f.eventually("a machine is not available while the cluster has the host", func() bool {
			_, err := before.Get(t.Context(), ref)

			return hypervisor.Is(err, hypervisor.Unavailable)
		})
	}

	all := f.config.Hosts
	f.config.Hosts = slices.DeleteFunc(slices.Clone(all), func(h hypervisor.Host) bool { return h.Name == "lost" })

	after := f.connect() // as the operator does when the cluster changes
	f.wantGone(after, onLost)
	f.wantRunning(after, onKept, "kept")

	_, err = after.Start(t.Context(), placed, newSeed)
	f.wantKind("start of a machine that was placed on the host", err, hypervisor.IDTaken)

	placed.ID, placed.Node = 0, ""
	m, err := conformance.Create(t.Context(), after, &placed, newSeed)

	if err != nil || m.Node != "kept" {
		t.Errorf("want a machine on the other host, got %+v (%v)", m, err)
	}

	f.must(f.hosts["lost"].Restart(t.Context()))

	f.config.Hosts = all
	again := f.connect()

	found, err := again.List(t.Context())
	if err != nil || len(found) != 4 {
		t.Errorf("want the machines of both hosts, got %+v (%v)", found, err)
	}

	for _, m := range found {
		f.must(conformance.Delete(t.Context(), again, hypervisor.MachineRef{ID: m.ID, Owner: m.Owner}))
	}

	f.checkNothingLeft(again)
}

// A host is installed again, with the same name and address. The machines that it had count as gone, also for the process that
// has created them, and new machines are created there.
func TestReplacedHost(t *testing.T) {
	t.Parallel()

	f := newFleet(t, map[string]int64{"kept": 0, "replaced": 0})
	running := f.connect()
	onKept, onReplaced := f.create(running, "kept"), f.createBoth(running, "replaced")

	f.must(f.hosts["replaced"].Reinstall(t.Context()))
	f.must(f.hosts["replaced"].CreateVolume(testlibvirt.PoolName, template, diskSize))

	next := f.connect()
	f.wantGone(next, onReplaced)
	f.wantRunning(next, onKept, "kept")

	for _, ref := range onReplaced {
		f.eventually("the process that has created the machine sees that it is gone", func() bool {
			_, err := running.Get(t.Context(), ref)

			return hypervisor.Is(err, hypervisor.NotFound)
		})
	}

	f.wantGone(running, onReplaced)

	for _, p := range []hypervisor.Provider{running, next} {
		ref := f.create(p, "replaced")
		f.wantRunning(p, ref, "replaced")
		f.must(conformance.Delete(t.Context(), p, ref))
	}

	f.must(conformance.Delete(t.Context(), running, onKept))
	f.checkNothingLeft(next)
}
