// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// grantByPool replaces the grants on /vms with grants on the pool. The operator then sees a machine only
// after its clone has ended, because Proxmox adds the machine to the pool at that time.
func grantByPool(m *pve.Model) {
	for i, grant := range m.ACL {
		if grant.Path == "/vms" {
			m.ACL[i].Path = "/pool/" + pve.DefaultPool
		}
	}
}

// forEachGrant runs a test with both kinds of grants of docs/guides/proxmox-permissions.md.
func forEachGrant(t *testing.T, try func(t *testing.T, grant func(*pve.Model))) {
	t.Helper()

	for name, grant := range map[string]func(*pve.Model){"by pool": grantByPool, "on /vms": func(*pve.Model) {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			try(t, grant)
		})
	}
}

// newManualClock returns the clock of a simulator. The clock does not advance until pass is called, so that
// tasks do not end.
func newManualClock(t *testing.T) (clk *clocktesting.FakeClock, pass func()) {
	t.Helper()

	clk = clocktesting.NewFakeClock(time.Now())

	return clk, func() {
		var group sync.WaitGroup

		group.Go(func() {
			for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
				clk.Step(longDelay / 4)
			}
		})
		t.Cleanup(group.Wait)
	}
}

// longDelay is long enough to observe a task while it runs.
const longDelay = time.Minute

// A process that starts while a clone runs adopts the clone. There is one machine, no error, and no advice
// to destroy the new machine.
func TestRestartDuringClone(t *testing.T) {
	t.Parallel()
	forEachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		s, want, pass := startCloneTask(t, grant)
		p := connect(t, s)

		if _, err := p.Start(t.Context(), want, seed); err != nil && !conformance.IsTransient(err) {
			t.Fatal(err)
		}

		pass()
		create(t, p, want)

		if made := s.Snapshot().CreatedVMs(); len(made) != 1 || made[0].VMID != want.ID || made[0].Starts != 1 {
			t.Errorf("machines: %+v", made)
		}

		if n := countCalls(s, http.MethodPost, "/clone"); n != 1 {
			t.Errorf("%d clones were requested", n)
		}
	})
}

// A deletion that starts during a clone waits for the clone. If the machine were reported as gone, the
// clone would become an orphan.
func TestRemovedDuringClone(t *testing.T) {
	t.Parallel()
	forEachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		s, want, pass := startCloneTask(t, grant)
		p := connect(t, s)

		if err := p.Delete(t.Context(), newRef(want)); err != nil && !conformance.IsTransient(err) {
			t.Fatal(err)
		}

		pass()
		remove(t, p, want)
		expectNothingLeft(t, s)
	})
}

// A process that starts while a machine is destroyed waits for the task. The machine does not count as
// another owner's, although it has no record any more. No privilege is reported as missing, although the
// machine has left its pool.
func TestRestartDuringDestroy(t *testing.T) {
	t.Parallel()
	forEachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel()
		m.Delays.Destroy = longDelay
		grant(&m)

		clk, pass := newManualClock(t)
		s := pvetest.New(t, m, pve.WithClock(clk))
		first := connect(t, s)
		_, want := create(t, first, newSpec(1))

		timing.WaitUntil(t, "it is being destroyed", func() bool {
			if err := first.Delete(t.Context(), newRef(want)); err != nil && !conformance.IsTransient(err) {
				t.Fatal(err)
			}

			return clk.HasWaiters()
		})
		first.Close()
		clk.Step(longDelay / 2)
		timing.WaitUntil(t, "nothing stands in it", func() bool {
			vm, _ := s.Snapshot().VM(want.ID)

			return vm.Config["description"] == ""
		})

		second := connect(t, s)
		if err := second.Delete(t.Context(), newRef(want)); err != nil && !conformance.IsTransient(err) {
			t.Fatal(err)
		}

		pass()
		remove(t, second, want)
		expectNothingLeft(t, s)
	})
}

// A machine may disappear between two requests of one reconcile. It is inspected again, and its remains are
// deleted. No privilege is reported as missing, although privileges on the pool alone no longer show the
// machine.
func TestMachineIsDeletedBetweenReconciles(t *testing.T) {
	t.Parallel()
	forEachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel()
		grant(&m)

		s := pvetest.New(t, m)
		first := connect(t, s)
		_, want := create(t, first, newSpec(1))

		first.Close()

		var once sync.Once

		s.OnCall(func(c pve.Call) {
			if c.Phase == pve.PhaseBefore && c.VMID == want.ID && strings.HasSuffix(c.Path, "/status/current") {
				once.Do(func() { s.DeleteVM(want.ID) })
			}
		})

		remove(t, connect(t, s), want)
		expectNothingLeft(t, s)
	})
}

// startCloneTask returns a simulator with a running clone that ends when pass is called. The process that
// started the clone no longer exists.
func startCloneTask(t *testing.T, grant func(*pve.Model)) (s *pve.Server, want hypervisor.MachineSpec, pass func()) {
	t.Helper()

	m := fastModel()
	m.Delays.Clone = longDelay
	// The disk is the first drive of the clone. Until the disk is copied, the configuration of the clone
	// has only its lock.
	m.Templates[0].NoCloudInit = true
	grant(&m)

	clk, pass := newManualClock(t)
	s = pvetest.New(t, m, pve.WithClock(clk))
	first := connect(t, s)
	want = reserve(t, first, newSpec(1))

	if _, err := first.Start(t.Context(), want, seed); err != nil {
		t.Fatal(err)
	}

	first.Close()

	if vms := s.Snapshot().CreatedVMs(); len(vms) != 1 || vms[0].Lock != "clone" {
		t.Fatalf("no clone runs: %+v", vms)
	}

	return s, want, pass
}

// Proxmox does not name the missing privilege of a clone, because one of two privileges would suffice.
func TestCloneWithoutPrivilege(t *testing.T) {
	t.Parallel()

	m := fastModel()
	grantByPool(&m)

	s := pvetest.New(t, m)
	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.ResourcePool = "" })
	_, err := p.Start(t.Context(), reserve(t, p, newSpec(1)), seed)
	requireError(t, err, hypervisor.Rejected, "lacks VM.Allocate on /vms/")
}

// setAuditPrivilege grants or revokes the privilege to see machines, for both kinds of grants.
func setAuditPrivilege(s *pve.Server, held bool) {
	for _, role := range []string{"HyperFleetVM", "HyperFleetPool"} {
		s.SetPrivilege(role, "VM.Audit", held)
	}
}

// A revoked privilege hides machines, but the machines do not count as gone.
func TestPrivilegeIsRevoked(t *testing.T) {
	t.Parallel()
	forEachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel()
		grant(&m)

		s := pvetest.New(t, m)
		first := connect(t, s)
		_, want := create(t, first, newSpec(1))

		setAuditPrivilege(s, false)

		for who, p := range map[string]hypervisor.Provider{"the same process": first, "a new process": connect(t, s)} {
			t.Log(who)
			requireError(t, p.Delete(t.Context(), newRef(want)), hypervisor.Rejected, "VM.Audit")
		}

		setAuditPrivilege(s, true)

		remove(t, connect(t, s), want)
		expectNothingLeft(t, s)
	})
}

// The privilege is granted again after the machine was looked up and before the privileges are read. The
// machine must not count as gone, because it still runs.
func TestPrivilegeIsGrantedAgain(t *testing.T) {
	t.Parallel()
	forEachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel()
		grant(&m)

		s := pvetest.New(t, m)
		first := connect(t, s)
		_, want := create(t, first, newSpec(1))

		t.Cleanup(s.OnCall(func(call pve.Call) {
			if call.Phase != pve.PhaseAfter && strings.HasSuffix(call.Path, "/access/permissions") {
				setAuditPrivilege(s, true)
			}
		}))

		suspect := newRef(want)
		suspect.PowerOffReported = true

		for who, p := range map[string]hypervisor.Provider{"the same process": first, "a new process": connect(t, s)} {
			for range 3 {
				setAuditPrivilege(s, false)

				if got, err := p.Get(t.Context(), suspect); hypervisor.Is(err, hypervisor.NotFound) {
					t.Fatalf("%s: %+v, %v", who, got, err)
				}
			}

			setAuditPrivilege(s, true)
		}

		remove(t, connect(t, s), want)
		expectNothingLeft(t, s)
	})
}

// TestPrivilegeChangesBetweenLooks changes the privilege to see machines at each request of a lookup. A machine that
// runs on another node, or has another ID than the recorded one, must not count as gone.
func TestPrivilegeChangesBetweenLooks(t *testing.T) {
	t.Parallel()
	forEachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel().WithSharedStorage()
		grant(&m)

		s := pvetest.New(t, m)
		first := connect(t, s)
		made, want := create(t, first, newSpec(1))

		other := "pve1"
		if made.Node == other {
			other = "pve2"
		}

		for at := range 12 {
			for _, isHeldAtFirst := range []bool{true, false} {
				s.Migrate(made.ID, other)
				made.Node, other = other, made.Node

				otherID := newRef(want)
				otherID.ID = made.ID + 1000
				moved := newRef(want)
				moved.PowerOffReported = true

				for who, look := range map[string]func() error{
					"the same process": func() error { return errorOf(first.Get(t.Context(), moved)) },
					"a new process":    func() error { return errorOf(connect(t, s).Get(t.Context(), moved)) },
					"another ID":       func() error { return errorOf(connect(t, s).Get(t.Context(), otherID)) },
				} {
					setAuditPrivilege(s, isHeldAtFirst)

					var calls atomic.Int32

					removeHook := s.OnCall(func(call pve.Call) {
						if call.Phase == pve.PhaseAfter && int(calls.Add(1)) == at+1 {
							setAuditPrivilege(s, !isHeldAtFirst)
						}
					})
					err := look()

					removeHook()

					if hypervisor.Is(err, hypervisor.NotFound) {
						t.Fatalf("%s, held at first: %v, changed after call %d: %v", who, isHeldAtFirst, at+1, err)
					}
				}

				setAuditPrivilege(s, true)
			}
		}

		remove(t, connect(t, s), want)
		expectNothingLeft(t, s)
	})
}

// TestReserveReadsOwners checks that Reserve returns the machine that an owner already has, and reserves nothing while an
// earlier claim of the same name has a machine.
func TestReserveReadsOwners(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	first := connect(t, s)
	made, want := create(t, first, newSpec(1))

	for who, p := range map[string]hypervisor.Provider{"the same process": first, "a new process": connect(t, s)} {
		if got, err := p.Reserve(t.Context(), newSpec(1)); err != nil || !got.Exists || got.ID != made.ID || got.Node != made.Node {
			t.Errorf("%s: reserved %+v, %v, want machine %d", who, got, err, made.ID)
		}

		namesake := newSpec(1)
		namesake.Owner.UID = "another-uid"
		requireError(t, errorOf(p.Reserve(t.Context(), namesake)), hypervisor.NoCapacity, "belongs to an earlier MachineClaim")

		if got, err := p.Reserve(t.Context(), newSpec(2)); err != nil || got.Exists {
			t.Errorf("%s: reserved %+v, %v for a claim without a machine", who, got, err)
		}
	}

	remove(t, first, want)
	expectNothingLeft(t, s)
}

// While no node reports its status, no template is visible. The error must not be NotFound.
func TestNoReports(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	heal := stopReports(s)
	p := connect(t, s)
	want := newSpec(1)

	for what, err := range map[string]error{
		"resolve": errorOf(p.Resolve(t.Context(), want.Template, want.Shape)),
		"reserve": errorOf(p.Reserve(t.Context(), want)),
	} {
		t.Log(what)
		requireError(t, err, hypervisor.Unavailable, "reports no status")
	}

	info, err := p.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if !strings.Contains(strings.Join(info.Warnings, "\n"), "node pve1 reports no status") {
		t.Errorf("warnings: %q", info.Warnings)
	}

	// The VMs of a node without status reports still exist.
	heal()

	_, made := create(t, connect(t, s), newSpec(2))

	heal = stopReports(s)
	remove(t, connect(t, s), made)
	expectNothingLeft(t, s)
	heal()

	if _, err := connect(t, s).Resolve(t.Context(), want.Template, want.Shape); err != nil {
		t.Error(err)
	}
}

// stopReports stops the status reports of all nodes.
func stopReports(s *pve.Server) (heal func()) {
	var all []func()

	for _, n := range pve.DefaultModel().Nodes {
		all = append(all, s.AddFault(pve.Fault{Kind: pve.FaultNoReports, Node: n.Name}))
	}

	return func() {
		for _, end := range all {
			end()
		}
	}
}

func errorOf[T any](_ T, err error) error { return err }

// A node that does not respond is in back-off, and the other nodes stay in use.
func TestNodeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	silent := "/nodes/pve2/*"
	heal := s.AddFault(pve.Fault{Kind: pve.FaultNodeDown, Path: silent, Reason: "Connection timed out"})

	clk := clocktesting.NewFakeClock(time.Now())
	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) { o.Clock = clk })

	info, err := p.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if !strings.Contains(strings.Join(info.Warnings, "\n"), "node pve2 does not respond") {
		t.Errorf("warnings: %q", info.Warnings)
	}

	for n := range 6 {
		reserved, err := p.Reserve(t.Context(), newSpec(n+1))
		if err != nil || reserved.Node == "pve2" {
			t.Errorf("reserved on %q: %v", reserved.Node, err)
		}
	}

	if _, err := p.List(t.Context()); err != nil {
		t.Error(err)
	}

	if n := countCalls(s, "", "/nodes/pve2/"); n != 1 {
		t.Errorf("the node was called %d times", n)
	}

	heal()
	clk.Step(time.Minute)

	info, err = p.Check(t.Context())
	if err != nil || strings.Contains(strings.Join(info.Warnings, "\n"), "pve2") {
		t.Errorf("after the node responds again: %q %v", info.Warnings, err)
	}
}

// Machines that are placed at the same time are spread like machines that are placed one after the other.
func TestConcurrentReservations(t *testing.T) {
	t.Parallel()

	const each = 4

	m := fastModel()
	s := pvetest.New(t, m)
	p := connect(t, s)

	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		nodes = map[string]int{}
	)

	for n := range each * len(m.Nodes) {
		wg.Go(func() {
			reserved, err := p.Reserve(t.Context(), newSpec(n+1))
			if err != nil {
				t.Error(err)
			}

			mu.Lock()
			defer mu.Unlock()

			nodes[reserved.Node]++
		})
	}

	wg.Wait()

	for _, node := range m.Nodes {
		if nodes[node.Name] != each {
			t.Errorf("%d machines on node %s, want %d: %v", nodes[node.Name], node.Name, each, nodes)
		}
	}
}

// A new process counts the memory of machines that claims hold and that do not run yet, and it counts a machine that runs
// only once.
func TestClaimedMachinesKeepTheirMemory(t *testing.T) {
	t.Parallel()

	var claimed []hypervisor.ClaimedMachine

	s := pvetest.New(t, fastModel())
	connectNew := func() hypervisor.Connection {
		return connect(t, s, func(c *hypervisor.Config, o *hypervisor.Options) {
			c.Nodes = []string{"pve1"}
			o.ListClaimed = func(_ context.Context, cluster string) ([]hypervisor.ClaimedMachine, error) {
				if cluster != c.Name {
					t.Errorf("asked for the machines of cluster %s, want %s", cluster, c.Name)
				}

				return claimed, nil
			}
		})
	}
	first := connectNew()

	capacity, err := first.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	// The node has memory for one of these, and for a small machine.
	newLargeSpec := func(n int) hypervisor.MachineSpec {
		spec := newSpec(n)
		spec.Shape.Memory = capacity.Free.Memory / 10 * 6 &^ (1<<20 - 1)

		return spec
	}
	placed := reserve(t, first, newLargeSpec(1))
	first.Close()

	claimed = []hypervisor.ClaimedMachine{{
		ID: placed.ID, Node: placed.Node, OwnerUID: placed.Owner.UID, CPU: placed.Shape.CPU, Memory: placed.Shape.Memory,
	}}
	second := connectNew()
	requireError(t, errorOf(second.Reserve(t.Context(), newLargeSpec(2))), hypervisor.NoCapacity, "pve1 has")
	create(t, second, placed)
	requireError(t, errorOf(second.Reserve(t.Context(), newLargeSpec(2))), hypervisor.NoCapacity, "pve1 has")

	// The claim has not recorded yet that the machine runs.
	third := connectNew()
	small := newSpec(3)
	small.Shape.Memory = capacity.Free.Memory / 10 * 3 &^ (1<<20 - 1)

	reserve(t, third, small)
	remove(t, third, placed)
	reserve(t, third, newLargeSpec(2))
}
