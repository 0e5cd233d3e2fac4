// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// stage is how far a machine is when its node is lost.
type stage struct {
	name string
	// slow has the machine stay at the stage, and standby is that it is made without being started.
	slow    func(*pve.Delays)
	standby bool
	// fault keeps it there.
	fault   pve.Fault
	reached func(pve.State, hypervisor.Machine) bool
}

func stages() []stage {
	task := func(kind string) func(pve.State, hypervisor.Machine) bool {
		return func(s pve.State, _ hypervisor.Machine) bool {
			return slices.ContainsFunc(s.Tasks, func(t pve.TaskState) bool { return t.Type == kind && t.Exit == "" })
		}
	}

	return []stage{
		{
			name: "is placed", reached: func(pve.State, hypervisor.Machine) bool { return true },
		},
		{
			name: "is cloned", slow: func(d *pve.Delays) { d.Clone = aWhile }, reached: task("qmclone"),
		},
		{
			name: "waits for its ISO", slow: func(d *pve.Delays) { d.Upload = aWhile },
			reached: func(s pve.State, m hypervisor.Machine) bool { return m.Cloned && task("imgcopy")(s, m) },
		},
		{
			name: "has no ISO", fault: pve.Fault{
				Kind: pve.FaultError, Method: http.MethodPost, Path: "/nodes/*/storage/*/upload", Status: 500, Reason: "got timeout",
			},
			reached: func(_ pve.State, m hypervisor.Machine) bool { return m.Cloned },
		},
		{
			name: "is held", standby: true,
			reached: func(_ pve.State, m hypervisor.Machine) bool { return m.State == hypervisor.StatePrepared },
		},
		{
			name: "is being started", slow: func(d *pve.Delays) { d.Start = aWhile }, reached: task("qmstart"),
		},
		{
			name:    "runs",
			reached: func(_ pve.State, m hypervisor.Machine) bool { return m.State == hypervisor.StateRunning },
		},
	}
}

// find is what is found out of a machine whose node is lost.
type find func(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec)

// A node is removed from the cluster for good, and its machines with it, however far they are.
// Those that ran are gone, those that did not are made elsewhere, and all can be removed; for the
// process that made them and for a new one, and nothing waits for the node.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	losesNodes(t, func(restarted, shared bool) bool { return restarted == shared })
}

func TestSoakNodeLost(t *testing.T) {
	t.Parallel()
	property.Soak(t)
	losesNodes(t, func(bool, bool) bool { return true })
}

func losesNodes(t *testing.T, tried func(restarted, shared bool) bool) {
	t.Helper()

	both := []bool{false, true}

	for _, at := range stages() {
		finds := map[string]find{"is removed": removed, "is made elsewhere": madeElsewhere}
		if at.name == "runs" {
			finds = map[string]find{"is removed": removed, "is gone": findGone}
		}

		for what, check := range finds {
			for _, restarted := range both {
				for _, shared := range both {
					if !tried(restarted, shared) {
						continue
					}

					name := fmt.Sprintf("a machine that %s %s, restarted %t, shared storage %t", at.name, what, restarted, shared)
					t.Run(name, func(t *testing.T) {
						t.Parallel()

						p, lost := loseNode(t, at, restarted, shared)
						check(t, p, lost)
					})
				}
			}
		}
	}
}

// loseNode has the node of a machine lost when that has reached a stage, and gives who finds out:
// a new process, where it was restarted.
func loseNode(t *testing.T, at stage, restarted, shared bool) (hypervisor.Provider, hypervisor.MachineSpec) {
	t.Helper()

	m := fastModel()
	if shared {
		m = m.WithSharedStorage()
	}

	if at.slow != nil {
		at.slow(&m.Delays)
	}

	clk, pass := standing(t)
	s := pvetest.New(t, m, pve.WithClock(clk))
	p := connect(t, s)

	if at.fault.Kind != "" {
		s.AddFault(at.fault)
	}

	want := placedElsewhere(t, p, s, at.standby)

	eventually(t, "it "+at.name, func() bool {
		var made hypervisor.Machine

		if at.name != "is placed" {
			var err error
			if made, err = conformance.Further(t.Context(), p, &want, seed); err != nil && !conformance.Passing(err) {
				t.Fatal(err)
			}
		}

		return at.reached(s.Snapshot(), made)
	})

	s.ClearFaults()
	s.AddFault(pve.Fault{Kind: pve.FaultNodeLost, Node: want.Node})
	pass()

	want.Standby = false

	if restarted {
		p = connect(t, s)
	}

	return p, want
}

// placedElsewhere reserves a machine on another node than the first, which is the one that is asked,
// and has the template where that is shared.
func placedElsewhere(t *testing.T, p hypervisor.Provider, s *pve.Server, standby bool) (want hypervisor.MachineSpec) {
	t.Helper()

	for n := 1; want.Node == "" || want.Node == s.Model().Nodes[0].Name; n++ {
		want = spec(n)
		want.Standby = standby
		want = reserve(t, p, want)
	}

	return want
}

// findGone waits until the machine is called gone.
func findGone(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()
	eventually(t, "it is gone", func() bool {
		_, err := p.Get(t.Context(), refOf(lost))

		return hypervisor.Is(err, hypervisor.NotFound)
	})
}

func removed(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()
	remove(t, p, lost)
}

// madeElsewhere makes the machine, and makes sure that few of the tries count as such.
func madeElsewhere(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()

	counted := &counting{Provider: p}

	if m, _ := create(t, counted, lost); m.Node == lost.Node {
		t.Errorf("it runs on node %s, which is lost", m.Node)
	}

	if len(counted.failures) > mostFailures {
		t.Errorf("%d tries that count: %q", len(counted.failures), counted.failures)
	}
}

// mostFailures are the tries that may count: a claim has eight.
const mostFailures = 2

// counting counts the tries that count.
type counting struct {
	hypervisor.Provider

	failures []string
}

// Start makes the machine.
func (c *counting) Start(ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	m, err := c.Provider.Start(ctx, spec, seed)

	switch hypervisor.KindOf(err) {
	case hypervisor.Busy, hypervisor.Unavailable, hypervisor.IDTaken:
	default:
		if err != nil {
			c.failures = append(c.failures, err.Error())
		}
	}

	return m, err
}

// A machine that was placed on a node that went offline before anything was made is placed
// elsewhere: what were made there could not be configured.
func TestNodeOfflineBeforeClone(t *testing.T) {
	t.Parallel()

	for _, kind := range []pve.FaultKind{pve.FaultNodeHung, pve.FaultNodeCut, pve.FaultNodeLost} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()

			s := pvetest.New(t, fastModel().WithSharedStorage())
			p := connect(t, s)
			want := placedElsewhere(t, p, s, false)

			s.AddFault(pve.Fault{Kind: kind, Node: want.Node})
			eventually(t, want.Node+" is one where nothing can be made", func() bool {
				capacity, err := p.Capacity(t.Context())

				return err == nil && !slices.ContainsFunc(capacity.Nodes, func(n hypervisor.Node) bool { return n.Name == want.Node && n.Online })
			})
			madeElsewhere(t, p, want)

			if made := s.Snapshot().Made(); len(made) != 1 || made[0].Node == want.Node {
				t.Errorf("machines: %+v", made)
			}
		})
	}
}
