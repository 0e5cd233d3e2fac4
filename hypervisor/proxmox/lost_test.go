// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"slices"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// A node is removed from the cluster for good, and its machines with it: they are gone, for the
// process that made them and for a new one, and nothing waits for the node.
func TestNodeLost(t *testing.T) {
	t.Parallel()

	for _, row := range []struct {
		name string
		// restarted: a new process finds out.
		restarted bool
		// cloning: the machine's clone runs; else the machine does.
		cloning bool
		find    func(*testing.T, hypervisor.Provider, hypervisor.MachineSpec)
	}{
		{name: "a running machine is gone", find: findGone},
		{name: "a running machine is gone after a restart", restarted: true, find: findGone},
		{name: "a running machine is removed", find: removed},
		{name: "a running machine is removed after a restart", restarted: true, find: removed},
		{name: "a machine that is cloned is removed", cloning: true, find: removed},
		{name: "a machine that is cloned is removed after a restart", restarted: true, cloning: true, find: removed},
		{name: "a machine that is cloned is made elsewhere", cloning: true, find: madeElsewhere},
		{name: "a machine that is cloned is made elsewhere after a restart", restarted: true, cloning: true, find: madeElsewhere},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			m.Outage = pve.Outage{}

			if row.cloning {
				m.Delays.Clone = 500 * time.Millisecond
			}

			s := pvetest.New(t, m)
			p := connect(t, s, fast(t))
			want := spec(1)

			for {
				made, err := further(t.Context(), p, &want)
				if err != nil && !transient(err) {
					t.Fatal(err)
				}

				if made.State == hypervisor.StateRunning || row.cloning && len(s.Snapshot().Made()) > 0 {
					break
				}

				time.Sleep(pause)
			}

			s.AddFault(pve.Fault{Kind: pve.FaultNodeLost, Node: want.Node})

			if row.restarted {
				p = connect(t, s, fast(t))
			}

			row.find(t, p, want)
		})
	}
}

// findGone waits until the machine is called gone.
func findGone(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()

	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		m, err := p.Get(t.Context(), refOf(lost))
		if hypervisor.Is(err, hypervisor.NotFound) {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("get: %+v, %v", m, err)
		}
	}
}

func removed(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()
	remove(t, p, refOf(lost))
}

func madeElsewhere(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()

	if m := create(t, p, lost); m.Node == lost.Node {
		t.Errorf("it runs on node %s, which is lost", m.Node)
	}
}

func refOf(s hypervisor.MachineSpec) hypervisor.MachineRef {
	return hypervisor.MachineRef{ID: s.ID, Owner: s.Owner}
}

// A machine that was placed on a node that went offline before anything was made is placed
// elsewhere: what were made there could not be configured.
func TestNodeOfflineBeforeClone(t *testing.T) {
	t.Parallel()

	for _, kind := range []pve.FaultKind{pve.FaultNodeHung, pve.FaultNodeCut, pve.FaultNodeLost} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()

			s := pvetest.New(t, fastModel().WithSharedStorage())
			p := connect(t, s, fast(t))

			// The template is on the first node, so that it could be cloned to another one.
			want := spec(1)
			want.Template = hypervisor.TemplateRef{ID: s.Model().Templates[0].VMID}

			for n := 1; want.Node == "" || want.Node == s.Model().Nodes[0].Name; n++ {
				want = spec(n)

				if _, err := further(t.Context(), p, &want); err != nil {
					t.Fatal(err)
				}
			}

			s.AddFault(pve.Fault{Kind: kind, Node: want.Node})
			offline(t, p, want.Node)
			madeElsewhere(t, p, want)

			if made := s.Snapshot().Made(); len(made) != 1 || made[0].Node == want.Node {
				t.Errorf("machines: %+v", made)
			}
		})
	}
}

// offline waits until the provider takes a node for one where nothing can be made.
func offline(t *testing.T, p hypervisor.Provider, node string) {
	t.Helper()

	for deadline := time.Now().Add(patience); ; time.Sleep(pause) {
		capacity, err := p.Capacity(t.Context())
		if err == nil && !slices.ContainsFunc(capacity.Nodes, func(n hypervisor.Node) bool { return n.Name == node && n.Online }) {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("node %s is not offline: %+v, %v", node, capacity, err)
		}
	}
}
