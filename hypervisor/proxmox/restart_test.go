// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
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

// grants are the two ways of docs/guides/proxmox-permissions.md.
func grants() map[string]func(*pve.Model) {
	return map[string]func(*pve.Model){"by pool": byPool, "on /vms": func(*pve.Model) {}}
}

// A process that begins while a clone runs goes on with that clone: there is one
// machine, nothing is refused, and nobody is told to destroy what is being made.
func TestRestartDuringClone(t *testing.T) {
	t.Parallel()

	for name, grant := range grants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s, want := cloning(t, grant)
			p := connect(t, s)

			start(t, p, want)

			made := s.Snapshot().Made()
			if len(made) != 1 || made[0].VMID != want.ID || made[0].Starts != 1 {
				t.Errorf("machines: %+v", made)
			}

			if n := clonesAsked(s); n != 1 {
				t.Errorf("%d clones were asked for", n)
			}
		})
	}
}

// A removal that begins while a clone runs waits for it: it must not be called gone, for
// it would be left behind.
func TestRemovedDuringClone(t *testing.T) {
	t.Parallel()

	for name, grant := range grants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s, want := cloning(t, grant)
			remove(t, connect(t, s), hypervisor.MachineRef{ID: want.ID, Owner: want.Owner})

			if left := s.Snapshot().Made(); len(left) != 0 {
				t.Errorf("left behind: %+v", left)
			}
		})
	}
}

// A process that begins while a machine is destroyed waits for that: it is not another's,
// though nothing in it says whose it was, and no privilege is missing, though it has left
// its pool.
func TestRestartDuringDestroy(t *testing.T) {
	t.Parallel()

	for name, grant := range grants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			m.Delays.Destroy = 600 * time.Millisecond
			grant(&m)

			s := pvetest.New(t, m)
			first := connect(t, s)
			want := spec(1)

			reserved, err := first.Reserve(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}

			want.ID, want.Node = reserved.ID, reserved.Node
			ref := hypervisor.MachineRef{ID: want.ID, Owner: want.Owner}

			start(t, first, want)

			for !slices.ContainsFunc(s.Calls(), func(c pve.Call) bool {
				return c.Method == http.MethodDelete && c.VMID == want.ID
			}) {
				if err := first.Delete(t.Context(), ref); err != nil && !transient(err) {
					t.Fatal(err)
				}
			}

			first.Close()

			for {
				if vm, _ := s.Snapshot().VM(want.ID); vm.Config["description"] == "" {
					break
				}

				time.Sleep(pause)
			}

			remove(t, connect(t, s), ref)

			if left := s.Snapshot(); len(left.Made()) != 0 || len(left.ISOs()) != 0 {
				t.Errorf("left behind: %+v %+v", left.Made(), left.ISOs())
			}
		})
	}
}

// A machine may go between two looks of the same pass: it is looked for once more, and what is
// left of it is removed. No privilege is missing, though with rights on its pool alone it
// can't be seen any more.
func TestGoneBetweenLooks(t *testing.T) {
	t.Parallel()

	for name, grant := range grants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			grant(&m)

			s := pvetest.New(t, m)
			first := connect(t, s)
			want := spec(1)

			reserved, err := first.Reserve(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}

			want.ID, want.Node = reserved.ID, reserved.Node

			start(t, first, want)
			first.Close()

			var once sync.Once

			s.OnCall(func(c pve.Call) {
				if c.Phase == pve.Before && c.VMID == want.ID && strings.HasSuffix(c.Path, "/status/current") {
					once.Do(func() { s.Vanish(want.ID) })
				}
			})

			remove(t, connect(t, s), hypervisor.MachineRef{ID: want.ID, Owner: want.Owner})

			if left := s.Snapshot(); len(left.Made()) != 0 || len(left.ISOs()) != 0 {
				t.Errorf("left behind: %+v %+v", left.Made(), left.ISOs())
			}
		})
	}
}

// cloning gives a simulator on which a clone runs that a process asked for which is gone.
func cloning(t *testing.T, grant func(*pve.Model)) (*pve.Server, hypervisor.MachineSpec) {
	t.Helper()

	m := fastModel()
	m.Delays.Clone = 3 * time.Second // long enough to be met in on a busy machine
	// Its disk is its first drive: until that is copied, nothing stands in the clone's
	// configuration but its lock.
	m.Templates[0].NoCloudInit = true
	grant(&m)

	s := pvetest.New(t, m)
	first := connect(t, s)
	want := spec(1)

	reserved, err := first.Reserve(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}

	want.ID, want.Node = reserved.ID, reserved.Node

	if _, err := first.Start(t.Context(), want, seed); err != nil {
		t.Fatal(err)
	}

	first.Close()

	if vms := s.Snapshot().Made(); len(vms) != 1 || vms[0].Lock != "clone" {
		t.Fatalf("no clone runs: %+v", vms)
	}

	return s, want
}

// start calls Start until the machine runs.
func start(t *testing.T, p hypervisor.Provider, want hypervisor.MachineSpec) {
	t.Helper()

	for until := time.Now().Add(time.Minute); ; time.Sleep(pause) {
		m, err := p.Start(t.Context(), want, seed)

		switch {
		case err != nil && !transient(err):
			t.Fatal(err)
		case err == nil && m.State == hypervisor.StateRunning:
			return
		case time.Now().After(until):
			t.Fatalf("it does not run: %s %v", m.Message, err)
		}
	}
}

func clonesAsked(s *pve.Server) int {
	n := 0

	for _, c := range s.Calls() {
		if c.Method == http.MethodPost && strings.HasSuffix(c.Path, "/clone") {
			n++
		}
	}

	return n
}

// Proxmox does not say which privilege a clone lacks, as one of two would do.
func TestCloneWithoutPrivilege(t *testing.T) {
	t.Parallel()

	m := fastModel()
	byPool(&m)

	s := pvetest.New(t, m)
	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) { c.ResourcePool = "" })
	want := spec(1)

	reserved, err := p.Reserve(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}

	want.ID, want.Node = reserved.ID, reserved.Node

	_, err = p.Start(t.Context(), want, seed)
	if !hypervisor.Is(err, hypervisor.Rejected) || !strings.Contains(err.Error(), "lacks VM.Allocate on /vms/") {
		t.Errorf("got %v", err)
	}
}

// A privilege that was taken away hides machines: that is no reason to call them gone.
func TestPrivilegeTakenAway(t *testing.T) {
	t.Parallel()

	for name, grant := range grants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			grant(&m)

			s := pvetest.New(t, m)
			first := connect(t, s)
			want := spec(1)

			reserved, err := first.Reserve(t.Context(), want)
			if err != nil {
				t.Fatal(err)
			}

			want.ID, want.Node = reserved.ID, reserved.Node
			ref := hypervisor.MachineRef{ID: want.ID, Owner: want.Owner}

			start(t, first, want)
			for _, role := range []string{"HyperFleetVM", "HyperFleetPool"} {
				s.SetPrivilege(role, "VM.Audit", false)
			}

			for who, p := range map[string]hypervisor.Provider{"the same process": first, "a new process": connect(t, s)} {
				if err := p.Delete(t.Context(), ref); !hypervisor.Is(err, hypervisor.Rejected) ||
					!strings.Contains(err.Error(), "VM.Audit") {
					t.Errorf("%s: delete says %v", who, err)
				}
			}

			for _, role := range []string{"HyperFleetVM", "HyperFleetPool"} {
				s.SetPrivilege(role, "VM.Audit", true)
			}
			remove(t, connect(t, s), ref)

			if left := s.Snapshot().Made(); len(left) != 0 {
				t.Errorf("left behind: %+v", left)
			}
		})
	}
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
		if !hypervisor.Is(err, hypervisor.Unavailable) || !strings.Contains(err.Error(), "reports no status") {
			t.Errorf("%s: %v", what, err)
		}
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

	made := spec(2)

	reserved, err := connect(t, s).Reserve(t.Context(), made)
	if err != nil {
		t.Fatal(err)
	}

	made.ID, made.Node = reserved.ID, reserved.Node
	start(t, connect(t, s), made)

	heal = noReports(s)
	remove(t, connect(t, s), hypervisor.MachineRef{ID: made.ID, Owner: made.Owner})

	if left := s.Snapshot(); len(left.Made()) != 0 || len(left.ISOs()) != 0 {
		t.Errorf("left behind: %+v %+v", left.Made(), left.ISOs())
	}

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

	if n := callsTo(s, "/nodes/pve2/"); n != 1 {
		t.Errorf("the node was asked %d times", n)
	}

	heal()
	clk.Step(time.Minute)

	info, err = p.Check(t.Context())
	if err != nil || strings.Contains(strings.Join(info.Warnings, "\n"), "pve2") {
		t.Errorf("after it answers again: %q %v", info.Warnings, err)
	}
}

func callsTo(s *pve.Server, prefix string) int {
	n := 0

	for _, c := range s.Calls() {
		if strings.HasPrefix(c.Path, prefix) {
			n++
		}
	}

	return n
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
