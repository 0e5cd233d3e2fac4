// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Run runs each case against its own hypervisor.
func Run[T Test[T]](t T, newHarness HarnessFunc[T]) {
	t.Helper()

	cases := []struct {
		name string
		run  func(*env)
		// runsAlone is true if machines of other cases on the same hypervisor would change what the
		// case measures. The case then does not run in parallel.
		runsAlone bool
	}{
		{name: "Reserve creates nothing and is repeatable", run: testReserve},
		{name: "no two machines have the same address", run: testAddressInUse},
		{name: "concurrent calls create one machine", run: testConcurrentCreate},
		{name: "the cloud-init ISO is created once", run: testSeedOnce},
		{name: "nothing is left after the deletion", run: testLifecycle},
		{name: "the longest names are complete", run: testLongNames},
		{name: "Get returns the current state", run: testGet},
		{name: "a stopped machine is not started again", run: testSingleStart},
		{name: "Get does not find a machine that was deleted externally", run: testExternalDeletion},
		{name: "Delete is repeatable and does not find an unknown machine", run: testDelete},
		{name: "a running machine is deleted", run: testDeleteRunning},
		{name: "a machine is deleted while it is created", run: testDeleteWhileCreating},
		{name: "an id with another owner is replaced", run: testIDTaken},
		{name: "another claim's machine is not changed", run: testNotOwned},
		{name: "a machine whose id was lost is adopted", run: testAdopt},
		{name: "List returns machines and remains", run: testList},
		{name: "an operator does not list another operator's machines", run: testTwoOperators},
		{name: "Wake is called for owners", run: testWake},
		{name: "Capacity is plausible and decreases", run: testCapacity, runsAlone: true},
		{name: "errors have kinds", run: testErrorKinds},
		{name: "many machines concurrently", run: testManyMachines},
		{name: "a standby machine is created and not started", run: testStandby},
		{name: "a standby machine is started when its standby ends", run: testStandbyStart},
		{name: "a standby machine is started by another process", run: testStandbyStartInNewProcess},
		{name: "a standby machine is deleted", run: testStandbyDelete},
		{name: "Get does not find a standby machine that was deleted externally", run: testStandbyExternalDeletion},
		{name: "a standby machine uses no memory", run: testStandbyCapacity, runsAlone: true},
		{name: "Ensure does not stop a running machine", run: testEnsureRunning},
		{name: "the output of the console is kept until the deletion", run: testConsole},
		{name: "each machine has its own TPM", run: testOwnTPM},
		{name: "a machine has a TPM only if its shape requests one", run: testNoTPM},
		{name: "each machine has its own devices", run: testDevices, runsAlone: true},
	}

	for _, c := range cases {
		t.Run(c.name, func(t T) {
			if !c.runsAlone {
				t.Parallel()
			}

			e := newEnv(t, newHarness)
			c.run(e)
			e.assertForeignUnchanged()
		})
	}
}

func testReserve(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)

	first, err := p.Reserve(e.Context(), c.spec)
	if err != nil {
		e.Fatal(err)
	}

	second, err := p.Reserve(e.Context(), c.spec)
	if err != nil {
		e.Fatal(err)
	}

	hasNode := first.Node != "" // a provider that places machines at their start reserves no node
	if first.ID == 0 || hasNode == e.PlacesAtStart || first.ID != second.ID {
		e.Errorf("want the same reservation twice, got %+v and %+v", first, second)
	}

	other, err := p.Reserve(e.Context(), e.newClaim(2).spec)
	if err != nil || other.ID == first.ID {
		e.Errorf("want another id for another claim, got %+v (%v)", other, err)
	}

	e.assertNothingLeft()
}

// testAddressInUse checks that no machine is created with an address that another machine has.
func testAddressInUse(e *env) {
	network := hypervisor.NetworkOptions{Addresses: []string{"192.0.2.10/24"}, AddressNetwork: "lab"}
	p, first := e.connect(operatorA), e.newClaim(1)
	first.spec.Network = network
	e.startMachine(first)

	found, err := p.Reserve(e.Context(), first.spec)
	if err != nil || !found.Exists || !slices.Equal(found.Addresses, network.Addresses) {
		e.Errorf("want the addresses of the machine, got %+v (%v)", found, err)
	}

	for who, p := range map[string]hypervisor.Provider{"the same process": p, "a new process": e.connect(operatorA)} {
		second := e.newClaim(2) //nolint:mnd // the second claim
		second.spec.Network.AddressNetwork = network.AddressNetwork

		// The ID is reserved first. Then a backup is restored in which the claim has the address.
		reserved, err := p.Reserve(e.Context(), second.spec)
		if err != nil {
			e.Fatal(err)
		}

		second.spec.Network = network
		second.spec.ID, second.spec.Node = reserved.ID, reserved.Node

		_, err = p.Start(e.Context(), second.spec, second.newSeed)
		if !hypervisor.Is(err, hypervisor.NoCapacity) || second.seedCalls > 0 {
			e.Errorf("%s: start with the address of another machine: %v", who, err)
		}

		third := e.newClaim(3) //nolint:mnd // the third claim
		third.spec.Network = network

		if _, err := p.Reserve(e.Context(), third.spec); !hypervisor.Is(err, hypervisor.NoCapacity) {
			e.Errorf("%s: reserve with the address of another machine: %v", who, err)
		}

		third.spec.Network.AddressNetwork = "another"

		if _, err := p.Reserve(e.Context(), third.spec); err != nil {
			e.Errorf("%s: reserve with the same address on another network: %v", who, err)
		}
	}

	if err := Delete(e.Context(), p, first.ref()); err != nil {
		e.Fatal(err)
	}

	e.assertNothingLeft()
}

func testConcurrentCreate(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)

	reserved, err := p.Reserve(e.Context(), c.spec)
	if err != nil {
		e.Fatal(err)
	}

	var wg sync.WaitGroup

	for range 8 {
		wg.Go(func() {
			copied := *c
			copied.spec.ID, copied.spec.Node = reserved.ID, reserved.Node

			if _, err := createMachine(e.Context(), p, &copied); err != nil {
				e.Error(err)
			}
		})
	}

	wg.Wait()
	e.assertStartedOnce(c)
}

func testSeedOnce(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	e.mustCreate(p, c)

	if c.seedCalls != 1 {
		e.Errorf("the cloud-init seed was requested %d times, want once", c.seedCalls)
	}

	if seed := e.Inspect().Seeds; len(seed) > 1 {
		e.Errorf("want at most one cloud-init ISO, got %v", seed)
	}
}

func testLifecycle(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)

	m := e.mustCreate(p, c)
	if m.ID != c.spec.ID || m.Node == "" || m.Owner != c.spec.Owner || m.CreatedAt.IsZero() {
		e.Errorf("the machine is incomplete: %+v", m)
	}

	e.assertStartedOnce(c)
	e.PowerOff(m.ID)
	e.mustDelete(p, c)
	e.assertNothingLeft()
}

// testLongNames uses the longest names that the API accepts. The last character shows whether a name was truncated.
func testLongNames(e *env) {
	const longest, longestPool = 63, 52

	p, c := e.connect(operatorA), e.newClaim(1)
	c.spec.Owner.Pool = strings.Repeat("p", longestPool)
	c.spec.Owner.Name = c.spec.Owner.Pool + "-" + strings.Repeat("c", longest-longestPool-2) + "z"
	c.spec.Hostname = c.spec.Owner.Name

	if m := e.mustCreate(p, c); m.Owner != c.spec.Owner {
		e.Errorf("the machine has the owner %+v, want %+v", m.Owner, c.spec.Owner)
	}

	found := e.connect(operatorA) // a new process reads all from the hypervisor

	if m, err := found.Get(e.Context(), c.ref()); err != nil || m.Owner != c.spec.Owner {
		e.Errorf("a new process finds %+v (%v), want the owner %+v", m.Owner, err, c.spec.Owner)
	}

	e.mustDelete(found, c)
	e.assertNothingLeft()
}

func testGet(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)

	_, err := p.Get(e.Context(), c.ref())
	e.assertKind(err, hypervisor.NotFound)

	m := e.mustCreate(p, c)

	got, err := p.Get(e.Context(), c.ref())
	if err != nil || got.State != hypervisor.StateRunning {
		e.Fatalf("want a running machine, got %+v (%v)", got, err)
	}

	e.PowerOff(m.ID)
	e.eventually("Get returns Stopped", func() bool {
		got, err := p.Get(e.Context(), c.ref())

		return err == nil && got.State == hypervisor.StateStopped
	})

	// A new process gets the same state.
	got, err = e.connect(operatorA).Get(e.Context(), c.ref())
	if err != nil || got.State != hypervisor.StateStopped || got.Owner != c.spec.Owner {
		e.Errorf("want a stopped machine in a new process, got %+v (%v)", got, err)
	}
}

func testSingleStart(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	m := e.mustCreate(p, c)
	e.PowerOff(m.ID)

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA)} {
		e.eventually("create returns Stopped", func() bool {
			again, err := createMachine(e.Context(), provider, c)
			if err != nil {
				e.Fatal(err)
			}

			return again.State == hypervisor.StateStopped
		})
	}

	e.assertStartedOnce(c)
}

func testExternalDeletion(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	m := e.mustCreate(p, c)
	e.DeleteExternally(e, m.ID)

	e.eventually("Get returns NotFound", func() bool {
		_, err := p.Get(e.Context(), c.ref())

		return hypervisor.Is(err, hypervisor.NotFound)
	})

	_, err := e.connect(operatorA).Get(e.Context(), c.ref())
	e.assertKind(err, hypervisor.NotFound)

	e.mustDelete(p, c)
	e.assertNothingLeft()
}

func testDelete(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	c.spec.ID = e.IDMin + 7

	e.assertKind(p.Delete(e.Context(), c.ref()), hypervisor.NotFound)

	c.spec.ID = 0
	e.mustCreate(p, c)
	e.mustDelete(p, c)
	e.assertKind(p.Delete(e.Context(), c.ref()), hypervisor.NotFound)
	e.assertKind(e.connect(operatorA).Delete(e.Context(), c.ref()), hypervisor.NotFound)
	e.assertNothingLeft()
}

func testDeleteRunning(e *env) {
	c := e.newClaim(1)
	e.mustCreate(e.connect(operatorA), c)

	// Another process than the one that created the machine deletes it.
	e.mustDelete(e.connect(operatorA), c)
	e.assertNothingLeft()
}

func testDeleteWhileCreating(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)

	for range 2 {
		if _, err := c.advance(e.Context(), p); err != nil {
			e.Fatal(err)
		}
	}

	e.mustDelete(p, c)
	e.assertNothingLeft()
}

func testIDTaken(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)

	reserved, err := p.Reserve(e.Context(), c.spec)
	if err != nil {
		e.Fatal(err)
	}

	e.OccupyID(e, reserved.ID)
	e.initialForeign = e.Inspect().Foreign

	c.spec.ID, c.spec.Node = reserved.ID, reserved.Node

	m := e.mustCreate(p, c)
	if m.ID == reserved.ID {
		e.Errorf("the machine has the id %d, which belongs to another owner", m.ID)
	}

	e.mustDelete(p, c)
	e.assertNothingLeft()
}

func testNotOwned(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	m := e.mustCreate(p, c)

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA), e.connect(operatorB)} {
		other := e.newClaim(2)
		other.spec.ID = m.ID

		want := hypervisor.NotOwned
		if e.NamesHoldOwner {
			want = hypervisor.NotFound
		}

		e.assertKind(provider.Delete(e.Context(), other.ref()), want)

		_, err := provider.Get(e.Context(), other.ref())
		e.assertKind(err, hypervisor.NotFound)
	}

	otherOperator := e.connect(operatorB)
	e.assertKind(otherOperator.Delete(e.Context(), c.ref()), hypervisor.NotOwned)
	e.assertStartedOnce(c)
}

func testAdopt(e *env) {
	c := e.newClaim(1)
	m := e.mustCreate(e.connect(operatorA), c)

	// The claim's status was lost.
	lost := e.newClaim(1)
	p := e.connect(operatorA)

	again := e.mustCreate(p, lost)
	if again.ID != m.ID || lost.seedCalls != 0 {
		e.Errorf("want machine %d adopted, got %+v", m.ID, again)
	}

	e.assertStartedOnce(c)
	e.mustDelete(p, lost)
	e.assertNothingLeft()
}

func testList(e *env) {
	p := e.connect(operatorA)
	first, second := e.newClaim(1), e.newClaim(2)
	m := e.mustCreate(p, first)
	e.DeleteExternally(e, e.mustCreate(p, second).ID)

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA)} {
		e.eventually("List returns the machine", func() bool {
			all, err := provider.List(e.Context())
			if err != nil {
				e.Fatal(err)
			}

			i := slices.IndexFunc(all, func(x hypervisor.Machine) bool {
				return x.ID == m.ID && x.Owner == first.spec.Owner && x.State == hypervisor.StateRunning
			})
			if i >= 0 && all[i].CreatedAt.IsZero() {
				e.Errorf("the listed machine has no creation time: %+v", all[i])
			}

			return i >= 0
		})
	}

	// The cloud-init ISO of the second machine is still there. A new process, which does not know the second claim, may
	// list the ISO as remains.
	newProcess := e.connect(operatorA)

	all, err := newProcess.List(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	for _, x := range all {
		if x.State == hypervisor.StateRemains {
			if x.Owner.UID != second.spec.Owner.UID {
				e.Errorf("remains of an unknown owner: %+v", x)
			}

			if err := Delete(e.Context(), newProcess, hypervisor.MachineRef{ID: x.ID, Owner: x.Owner}); err != nil {
				e.Error(err)
			}
		}
	}

	e.mustDelete(p, first)
	e.assertNothingLeft()
}

func testTwoOperators(e *env) {
	a, b := e.connect(operatorA), e.connect(operatorB)
	ca, cb := e.newClaim(1), e.newClaim(2)
	e.mustCreate(a, ca)
	e.mustCreate(b, cb)

	for p, c := range map[hypervisor.Provider]*claim{a: ca, b: cb} {
		e.eventually("each operator lists only its own machine", func() bool {
			all, err := p.List(e.Context())

			return err == nil && len(all) == 1 && all[0].Owner == c.spec.Owner
		})
	}

	e.mustDelete(a, ca)
	e.assertStartedOnce(cb)
	e.mustDelete(b, cb)
	e.assertNothingLeft()
}

func testWake(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	m := e.mustCreate(p, c)

	e.eventually("Wake is called for the owner while the machine is created", func() bool {
		return e.wakeCount(c.spec.Owner.UID) > 0
	})

	e.eventually("Get returns Running", func() bool {
		got, err := p.Get(e.Context(), c.ref())

		return err == nil && got.State == hypervisor.StateRunning
	})

	before := e.wakeCount(c.spec.Owner.UID)
	e.PowerOff(m.ID)
	e.eventually("Wake is called for the owner when the machine stops", func() bool {
		return e.wakeCount(c.spec.Owner.UID) > before
	})
}

func testCapacity(e *env) {
	p := e.connect(operatorA)

	before, err := p.Capacity(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	e.mustCreate(p, e.newClaim(1))

	after, err := p.Capacity(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	if len(before.Nodes) == 0 || before.Free.Memory > before.Total.Memory || before.Total.CPU == 0 {
		e.Errorf("implausible capacity: %+v", before)
	}

	if before.Free.Memory-after.Free.Memory < e.Shape.Memory {
		e.Errorf("want a machine to use %d bytes of memory, but the free memory changed from %d to %d bytes",
			e.Shape.Memory, before.Free.Memory, after.Free.Memory)
	}

	e.eventually("Capacity counts one more machine", func() bool {
		got, err := p.Capacity(e.Context())

		return err == nil && got.Machines == before.Machines+1
	})
}

func testErrorKinds(e *env) {
	p := e.connect(operatorA)

	if _, err := p.Check(e.Context()); err != nil {
		e.Error(err)
	}

	found, err := p.Resolve(e.Context(), e.Template, e.Shape)
	if err != nil || len(found) == 0 {
		e.Errorf("resolve template: got %v (%v)", found, err)
	}

	_, err = p.Resolve(e.Context(), hypervisor.TemplateRef{Name: "there-is-no-such-template"}, e.Shape)
	e.assertKind(err, hypervisor.NotFound)

	big := e.Shape
	big.Memory = 1 << 50
	_, err = p.Resolve(e.Context(), e.Template, big)
	e.assertKind(err, hypervisor.Rejected)

	c := e.newClaim(1)
	c.spec.Shape = big
	_, err = p.Reserve(e.Context(), c.spec)
	e.assertKind(err, hypervisor.NoCapacity)
	e.assertNothingLeft()
}

func testManyMachines(e *env) {
	const machines = 6

	p := e.connect(operatorA)
	ids := make([]int, machines)

	var wg sync.WaitGroup

	for n := range machines {
		wg.Go(func() {
			c := e.newClaim(n + 1)

			m, err := createMachine(e.Context(), p, c)
			if err != nil {
				e.Error(err)

				return
			}

			ids[n] = m.ID

			if err := Delete(e.Context(), p, c.ref()); err != nil {
				e.Error(err)
			}
		})
	}

	wg.Wait()
	slices.Sort(ids)

	if len(slices.Compact(ids)) != machines {
		e.Errorf("an id was reserved twice: %v", ids)
	}

	e.assertNothingLeft()
}
