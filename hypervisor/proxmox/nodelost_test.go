// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// stage is the progress of a machine when its node is lost.
type stage struct {
	name string
	// slow keeps the machine in the stage. standby creates the machine without a start.
	slow    func(*pve.Delays)
	standby bool
	// fault keeps the machine in the stage.
	fault   pve.Fault
	reached func(pve.State, hypervisor.Machine) bool
}

func listStages() []stage {
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
			name: "is cloned", slow: func(d *pve.Delays) { d.Clone = longDelay }, reached: task("qmclone"),
		},
		{
			name: "waits for its ISO", slow: func(d *pve.Delays) { d.Upload = longDelay },
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
			name: "is being started", slow: func(d *pve.Delays) { d.Start = longDelay }, reached: task("qmstart"),
		},
		{
			name:    "runs",
			reached: func(_ pve.State, m hypervisor.Machine) bool { return m.State == hypervisor.StateRunning },
		},
	}
}

// nodeLossCheck checks what the provider does with a machine whose node is lost.
type nodeLossCheck func(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec)

// A node is removed from the cluster permanently, together with its machines. Machines that ran are gone,
// the other machines are created on another node, and all machines can be deleted. This holds for the
// process that created them and for a new process. Nothing waits for the lost node.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	testNodeLoss(t, func(restarted, shared bool) bool { return restarted == shared })
}

func TestSoakNodeLost(t *testing.T) {
	t.Parallel()
	property.Soak(t)
	testNodeLoss(t, func(bool, bool) bool { return true })
}

func testNodeLoss(t *testing.T, tried func(restarted, shared bool) bool) {
	t.Helper()

	both := []bool{false, true}

	for _, at := range listStages() {
		checks := map[string]nodeLossCheck{"is removed": deleteLost, "is created elsewhere": recreateElsewhere}
		if at.name == "runs" {
			checks = map[string]nodeLossCheck{"is removed": deleteLost, "is deleted": waitUntilGone}
		}

		for what, check := range checks {
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

// loseNode removes the node of a machine when the machine has reached a stage. It returns the provider of a
// new process if restarted is true.
func loseNode(t *testing.T, at stage, restarted, shared bool) (hypervisor.Provider, hypervisor.MachineSpec) {
	t.Helper()

	m := fastModel()
	if shared {
		m = m.WithSharedStorage()
	}

	if at.slow != nil {
		at.slow(&m.Delays)
	}

	clk, pass := newManualClock(t)
	s := pvetest.New(t, m, pve.WithClock(clk))
	p := connect(t, s)

	if at.fault.Kind != "" {
		s.AddFault(at.fault)
	}

	want := reserveElsewhere(t, p, s, at.standby)

	timing.WaitUntil(t, "it "+at.name, func() bool {
		var made hypervisor.Machine

		if at.name != "is placed" {
			var err error
			if made, err = conformance.Advance(t.Context(), p, &want, seed); err != nil && !conformance.IsTransient(err) {
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

// reserveElsewhere reserves a machine on another node than the connected node. That node has the template
// if the storage is shared.
func reserveElsewhere(t *testing.T, p hypervisor.Provider, s *pve.Server, standby bool) (want hypervisor.MachineSpec) {
	t.Helper()

	for n := 1; want.Node == "" || want.Node == s.Model().Nodes[0].Name; n++ {
		want = newSpec(n)
		want.Standby = standby
		want = reserve(t, p, want)
	}

	return want
}

// waitUntilGone waits until Get returns NotFound.
func waitUntilGone(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()
	timing.WaitUntil(t, "it is gone", func() bool {
		_, err := p.Get(t.Context(), newRef(lost))

		return hypervisor.Is(err, hypervisor.NotFound)
	})
}

func deleteLost(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()
	remove(t, p, lost)
}

// recreateElsewhere creates the machine, and checks that only a few attempts count as failures.
func recreateElsewhere(t *testing.T, p hypervisor.Provider, lost hypervisor.MachineSpec) {
	t.Helper()

	counted := &failureCounter{Provider: p}

	if m, _ := create(t, counted, lost); m.Node == lost.Node {
		t.Errorf("it runs on node %s, which is lost", m.Node)
	}

	if len(counted.failures) > maxFailures {
		t.Errorf("%d tries that count: %q", len(counted.failures), counted.failures)
	}
}

// maxFailures is the maximum number of attempts that count as failures. A claim has eight attempts.
const maxFailures = 2

// failureCounter counts the attempts that count as failures.
type failureCounter struct {
	hypervisor.Provider

	failures []string
}

// Start creates and starts the machine.
func (c *failureCounter) Start(ctx context.Context, spec hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
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

// A machine is placed on another node if its node goes offline before the clone. A clone on the offline
// node could not be configured.
func TestNodeOfflineBeforeClone(t *testing.T) {
	t.Parallel()

	for _, kind := range []pve.FaultKind{pve.FaultNodeHung, pve.FaultNodeCut, pve.FaultNodeLost} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()

			s := pvetest.New(t, fastModel().WithSharedStorage())
			p := connect(t, s)
			want := reserveElsewhere(t, p, s, false)

			s.AddFault(pve.Fault{Kind: kind, Node: want.Node})
			timing.WaitUntil(t, want.Node+" is a node on which no machine can be created", func() bool {
				capacity, err := p.Capacity(t.Context())

				return err == nil && !slices.ContainsFunc(capacity.Nodes, func(n hypervisor.Node) bool { return n.Name == want.Node && n.Online })
			})
			recreateElsewhere(t, p, want)

			if made := s.Snapshot().CreatedVMs(); len(made) != 1 || made[0].Node == want.Node {
				t.Errorf("machines: %+v", made)
			}
		})
	}
}

// A retry uses another node if the storage of the node was full, and so does a machine that was placed there before.
func TestRetryUsesAnotherNode(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) {
		// On the fast clock, the storage would not be excluded for long enough.
		o.Clock, o.TaskInterval, o.ListInterval = clock.RealClock{}, attemptInterval/2, attemptInterval/2
	})

	failed := reserve(t, p, newSpec(1))
	full := failed.Node

	var waiting hypervisor.MachineSpec
	for n := 2; waiting.Node != full; n++ {
		waiting = reserve(t, p, newSpec(n))
	}

	s.AddFault(pve.Fault{
		Kind: pve.FaultTaskError, Path: "/nodes/" + full + "/qemu/*/clone", Reason: "clone failed: lvcreate error: insufficient free space",
	})
	requireError(t, createError(t, p, &failed), hypervisor.NoCapacity, "insufficient free space")

	for _, spec := range []hypervisor.MachineSpec{failed, waiting} {
		if m, _ := create(t, p, spec); m.Node == full {
			t.Errorf("the machine of %s is on node %s, whose storage is full", spec.Owner.Name, m.Node)
		}
	}
}
