// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// byPool turns the grants on /vms into grants on the pool: a machine is seen when its
// clone has ended, which is when Proxmox puts it into the pool.
func byPool(m *pve.Model) {
	for i, grant := range m.ACL {
		if grant.Path == "/vms" {
			m.ACL[i].Path = "/pool/" + pve.DefaultPool
		}
	}
}

// eachGrant tries the two ways of docs/guides/proxmox-permissions.md.
func eachGrant(t *testing.T, try func(t *testing.T, grant func(*pve.Model))) {
	t.Helper()

	for name, grant := range map[string]func(*pve.Model){"by pool": byPool, "on /vms": func(*pve.Model) {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			try(t, grant)
		})
	}
}

// standing is a simulator's time: it stands, so that tasks last, until pass is called.
func standing(t *testing.T) (clk *clocktesting.FakeClock, pass func()) {
	t.Helper()

	clk = clocktesting.NewFakeClock(time.Now())

	return clk, func() {
		var group sync.WaitGroup

		group.Go(func() {
			for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
				clk.Step(aWhile / 4)
			}
		})
		t.Cleanup(group.Wait)
	}
}

// aWhile is long enough to be met in.
const aWhile = time.Minute

// A process that begins while a clone runs goes on with that clone: there is one
// machine, nothing is refused, and nobody is told to destroy what is being made.
func TestRestartDuringClone(t *testing.T) {
	t.Parallel()
	eachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		s, want, pass := cloning(t, grant)
		p := connect(t, s)

		if _, err := p.Start(t.Context(), want, seed); err != nil && !conformance.Passing(err) {
			t.Fatal(err)
		}

		pass()
		create(t, p, want)

		if made := s.Snapshot().Made(); len(made) != 1 || made[0].VMID != want.ID || made[0].Starts != 1 {
			t.Errorf("machines: %+v", made)
		}

		if n := asked(s, http.MethodPost, "/clone"); n != 1 {
			t.Errorf("%d clones were asked for", n)
		}
	})
}

// A removal that begins while a clone runs waits for it: it must not be called gone, for
// it would be left behind.
func TestRemovedDuringClone(t *testing.T) {
	t.Parallel()
	eachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		s, want, pass := cloning(t, grant)
		p := connect(t, s)

		if err := p.Delete(t.Context(), refOf(want)); err != nil && !conformance.Passing(err) {
			t.Fatal(err)
		}

		pass()
		remove(t, p, want)
		nothingLeft(t, s)
	})
}

// A process that begins while a machine is destroyed waits for that: it is not another's,
// though nothing in it says whose it was, and no privilege is missing, though it has left
// its pool.
func TestRestartDuringDestroy(t *testing.T) {
	t.Parallel()
	eachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel()
		m.Delays.Destroy = aWhile
		grant(&m)

		clk, pass := standing(t)
		s := pvetest.New(t, m, pve.WithClock(clk))
		first := connect(t, s)
		_, want := create(t, first, spec(1))

		eventually(t, "it is being destroyed", func() bool {
			if err := first.Delete(t.Context(), refOf(want)); err != nil && !conformance.Passing(err) {
				t.Fatal(err)
			}

			return clk.HasWaiters()
		})
		first.Close()
		clk.Step(aWhile / 2)
		eventually(t, "nothing stands in it", func() bool {
			vm, _ := s.Snapshot().VM(want.ID)

			return vm.Config["description"] == ""
		})

		second := connect(t, s)
		if err := second.Delete(t.Context(), refOf(want)); err != nil && !conformance.Passing(err) {
			t.Fatal(err)
		}

		pass()
		remove(t, second, want)
		nothingLeft(t, s)
	})
}

// A machine may go between two looks of the same pass: it is looked for once more, and what is
// left of it is removed. No privilege is missing, though with rights on its pool alone it
// can't be seen any more.
func TestGoneBetweenLooks(t *testing.T) {
	t.Parallel()
	eachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel()
		grant(&m)

		s := pvetest.New(t, m)
		first := connect(t, s)
		_, want := create(t, first, spec(1))

		first.Close()

		var once sync.Once

		s.OnCall(func(c pve.Call) {
			if c.Phase == pve.Before && c.VMID == want.ID && strings.HasSuffix(c.Path, "/status/current") {
				once.Do(func() { s.Vanish(want.ID) })
			}
		})

		remove(t, connect(t, s), want)
		nothingLeft(t, s)
	})
}

// cloning gives a simulator on which a clone runs until pass is called, and that a process asked
// for which is gone.
func cloning(t *testing.T, grant func(*pve.Model)) (s *pve.Server, want hypervisor.MachineSpec, pass func()) {
	t.Helper()

	m := fastModel()
	m.Delays.Clone = aWhile
	// Its disk is its first drive: until that is copied, nothing stands in the clone's
	// configuration but its lock.
	m.Templates[0].NoCloudInit = true
	grant(&m)

	clk, pass := standing(t)
	s = pvetest.New(t, m, pve.WithClock(clk))
	first := connect(t, s)
	want = reserve(t, first, spec(1))

	if _, err := first.Start(t.Context(), want, seed); err != nil {
		t.Fatal(err)
	}

	first.Close()

	if vms := s.Snapshot().Made(); len(vms) != 1 || vms[0].Lock != "clone" {
		t.Fatalf("no clone runs: %+v", vms)
	}

	return s, want, pass
}

// Proxmox does not say which privilege a clone lacks, as one of two would do.
func TestCloneWithoutPrivilege(t *testing.T) {
	t.Parallel()

	m := fastModel()
	byPool(&m)

	s := pvetest.New(t, m)
	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.ResourcePool = "" })
	_, err := p.Start(t.Context(), reserve(t, p, spec(1)), seed)
	says(t, err, hypervisor.Rejected, "lacks VM.Allocate on /vms/")
}

// seeMachines gives the operator the privilege to see machines, however its rights are granted, or takes it away.
func seeMachines(s *pve.Server, held bool) {
	for _, role := range []string{"HyperFleetVM", "HyperFleetPool"} {
		s.SetPrivilege(role, "VM.Audit", held)
	}
}

// A privilege that was taken away hides machines: that is no reason to call them gone.
func TestPrivilegeTakenAway(t *testing.T) {
	t.Parallel()
	eachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel()
		grant(&m)

		s := pvetest.New(t, m)
		first := connect(t, s)
		_, want := create(t, first, spec(1))

		seeMachines(s, false)

		for who, p := range map[string]hypervisor.Provider{"the same process": first, "a new process": connect(t, s)} {
			t.Log(who)
			says(t, p.Delete(t.Context(), refOf(want)), hypervisor.Rejected, "VM.Audit")
		}

		seeMachines(s, true)

		remove(t, connect(t, s), want)
		nothingLeft(t, s)
	})
}

// The privilege comes back after the machine was looked for, and before the privileges are: whoever looks at
// both must not call the machine gone, which runs on.
func TestPrivilegeComesBack(t *testing.T) {
	t.Parallel()
	eachGrant(t, func(t *testing.T, grant func(*pve.Model)) {
		t.Helper()

		m := fastModel()
		grant(&m)

		s := pvetest.New(t, m)
		first := connect(t, s)
		_, want := create(t, first, spec(1))

		t.Cleanup(s.OnCall(func(call pve.Call) {
			if call.Phase != pve.After && strings.HasSuffix(call.Path, "/access/permissions") {
				seeMachines(s, true)
			}
		}))

		suspect := refOf(want)
		suspect.Suspect = true

		for who, p := range map[string]hypervisor.Provider{"the same process": first, "a new process": connect(t, s)} {
			for range 3 {
				seeMachines(s, false)

				if got, err := p.Get(t.Context(), suspect); hypervisor.Is(err, hypervisor.NotFound) {
					t.Fatalf("%s: %+v, %v", who, got, err)
				}
			}

			seeMachines(s, true)
		}

		remove(t, connect(t, s), want)
		nothingLeft(t, s)
	})
}

// While no node reports, there is no template to be seen: that is no reason to say that
// there is none.
func TestNoReports(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	heal := noReports(s)
	p := connect(t, s)
	want := spec(1)

	for what, err := range map[string]error{
		"resolve": second(p.Resolve(t.Context(), want.Template, want.Shape)),
		"reserve": second(p.Reserve(t.Context(), want)),
	} {
		t.Log(what)
		says(t, err, hypervisor.Unavailable, "reports no status")
	}

	info, err := p.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if !strings.Contains(strings.Join(info.Warnings, "\n"), "node pve1 reports no status") {
		t.Errorf("warnings: %q", info.Warnings)
	}

	// What a node is silent about is there all the same.
	heal()

	_, made := create(t, connect(t, s), spec(2))

	heal = noReports(s)
	remove(t, connect(t, s), made)
	nothingLeft(t, s)
	heal()

	if _, err := connect(t, s).Resolve(t.Context(), want.Template, want.Shape); err != nil {
		t.Error(err)
	}
}

// noReports lets no node report.
func noReports(s *pve.Server) (heal func()) {
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

func second[T any](_ T, err error) error { return err }

// A node that does not answer is left alone, and the others go on.
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

	if !strings.Contains(strings.Join(info.Warnings, "\n"), "node pve2 does not answer") {
		t.Errorf("warnings: %q", info.Warnings)
	}

	for n := range 6 {
		reserved, err := p.Reserve(t.Context(), spec(n+1))
		if err != nil || reserved.Node == "pve2" {
			t.Errorf("reserved on %q: %v", reserved.Node, err)
		}
	}

	if _, err := p.List(t.Context()); err != nil {
		t.Error(err)
	}

	if n := asked(s, "", "/nodes/pve2/"); n != 1 {
		t.Errorf("the node was asked %d times", n)
	}

	heal()
	clk.Step(time.Minute)

	info, err = p.Check(t.Context())
	if err != nil || strings.Contains(strings.Join(info.Warnings, "\n"), "pve2") {
		t.Errorf("after it answers again: %q %v", info.Warnings, err)
	}
}

// Machines that are placed at the same time are spread as those placed one after the other.
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
			reserved, err := p.Reserve(t.Context(), spec(n+1))
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
