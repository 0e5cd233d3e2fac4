// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Run runs every case, each against a hypervisor of its own.
func Run(t *testing.T, fresh New) {
	t.Helper()

	cases := []struct {
		name string
		run  func(*env)
		// alone: it measures what machines of other cases on one hypervisor would change.
		alone bool
	}{
		{name: "reserving makes nothing and is repeatable", run: reserves},
		{name: "concurrent creates make one machine", run: concurrent},
		{name: "the cloud-init ISO is made once", run: seedOnce},
		{name: "a life ends with nothing left", run: life},
		{name: "get follows the machine", run: follows},
		{name: "a stopped machine is not started again", run: runsOnce},
		{name: "a vanished machine is not made again by get", run: vanishes},
		{name: "deleting is repeatable and knows the unknown", run: deletes},
		{name: "a running machine is deleted", run: deletesRunning},
		{name: "deletion while it is being made", run: deletesHalfMade},
		{name: "an id of another's is given up", run: idTaken},
		{name: "another claim's machine is not touched", run: notOwned},
		{name: "a machine whose id was lost is adopted", run: adopts},
		{name: "list gives machines and remains", run: lists},
		{name: "two operators do not see each other", run: twoOperators},
		{name: "owners are woken", run: wakes},
		{name: "capacity is plausible and shrinks", run: capacity, alone: true},
		{name: "errors have kinds", run: kinds},
		{name: "many machines at once", run: many},
		{name: "a held machine is made and not started", run: holds},
		{name: "a held machine is started when it is released", run: releases},
		{name: "a held machine is released by another process", run: releasedByAnother},
		{name: "a held machine is deleted", run: deletesHeld},
		{name: "a held machine that vanished is gone", run: heldVanishes},
		{name: "a held machine takes no memory", run: heldCapacity, alone: true},
		{name: "holding once more stops nothing", run: holdsLate},
		{name: "a machine's TPM is its own", run: ownTPM},
		{name: "a TPM comes only where it is asked for", run: noTPM},
	}

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if !c.alone {
				t.Parallel()
			}

			e := newEnv(t, fresh)
			c.run(e)
			e.untouched()
		})
	}
}

func reserves(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)

	first, err := p.Reserve(e.Context(), c.spec)
	if err != nil {
		e.Fatal(err)
	}

	second, err := p.Reserve(e.Context(), c.spec)
	if err != nil {
		e.Fatal(err)
	}

	if first.ID == 0 || (first.Node == "") != e.PlacesAtStart || first.ID != second.ID {
		e.Errorf("want the same reservation twice, got %+v and %+v", first, second)
	}

	other, err := p.Reserve(e.Context(), e.claim(2).spec)
	if err != nil || other.ID == first.ID {
		e.Errorf("want another id for another claim, got %+v (%v)", other, err)
	}

	e.nothingLeft()
}

func concurrent(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)

	reserved, err := p.Reserve(e.Context(), c.spec)
	if err != nil {
		e.Fatal(err)
	}

	var wg sync.WaitGroup

	for range 8 {
		wg.Go(func() {
			mine := *c
			mine.spec.ID, mine.spec.Node = reserved.ID, reserved.Node

			if _, err := create(e.Context(), p, &mine); err != nil {
				e.Error(err)
			}
		})
	}

	wg.Wait()
	e.only(c)
}

func seedOnce(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	e.mustCreate(p, c)

	if c.seed != 1 {
		e.Errorf("the cloud-init ISO was asked for %d times", c.seed)
	}

	if seed := e.Inspect().Seeds; len(seed) > 1 {
		e.Errorf("want at most one cloud-init ISO, there are %v", seed)
	}
}

func life(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)

	m := e.mustCreate(p, c)
	if m.ID != c.spec.ID || m.Node == "" || m.Owner != c.spec.Owner || m.Created.IsZero() {
		e.Errorf("the machine is incomplete: %+v", m)
	}

	e.only(c)
	e.PowerOff(m.ID)
	e.mustRemove(p, c)
	e.nothingLeft()
}

func follows(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)

	_, err := p.Get(e.Context(), c.ref())
	e.kind(err, hypervisor.NotFound)

	m := e.mustCreate(p, c)

	got, err := p.Get(e.Context(), c.ref())
	if err != nil || got.State != hypervisor.StateRunning {
		e.Fatalf("want it running, got %+v (%v)", got, err)
	}

	e.PowerOff(m.ID)
	e.eventually("get says stopped", func() bool {
		got, err := p.Get(e.Context(), c.ref())

		return err == nil && got.State == hypervisor.StateStopped
	})

	// A new process sees the same.
	got, err = e.connect(operatorA).Get(e.Context(), c.ref())
	if err != nil || got.State != hypervisor.StateStopped || got.Owner != c.spec.Owner {
		e.Errorf("want it stopped for a new process, got %+v (%v)", got, err)
	}
}

func runsOnce(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	m := e.mustCreate(p, c)
	e.PowerOff(m.ID)

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA)} {
		e.eventually("create says stopped", func() bool {
			again, err := create(e.Context(), provider, c)
			if err != nil {
				e.Fatal(err)
			}

			return again.State == hypervisor.StateStopped
		})
	}

	e.only(c)
}

func vanishes(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	m := e.mustCreate(p, c)
	e.Vanish(e, m.ID)

	e.eventually("get says gone", func() bool {
		_, err := p.Get(e.Context(), c.ref())

		return hypervisor.Is(err, hypervisor.NotFound)
	})

	_, err := e.connect(operatorA).Get(e.Context(), c.ref())
	e.kind(err, hypervisor.NotFound)

	e.mustRemove(p, c)
	e.nothingLeft()
}

func deletes(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	c.spec.ID = e.IDMin + 7

	e.kind(p.Delete(e.Context(), c.ref()), hypervisor.NotFound)

	c.spec.ID = 0
	e.mustCreate(p, c)
	e.mustRemove(p, c)
	e.kind(p.Delete(e.Context(), c.ref()), hypervisor.NotFound)
	e.kind(e.connect(operatorA).Delete(e.Context(), c.ref()), hypervisor.NotFound)
	e.nothingLeft()
}

func deletesRunning(e *env) {
	c := e.claim(1)
	e.mustCreate(e.connect(operatorA), c)

	// By a process that did not make it.
	e.mustRemove(e.connect(operatorA), c)
	e.nothingLeft()
}

func deletesHalfMade(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)

	for range 2 {
		if _, err := c.further(e.Context(), p); err != nil {
			e.Fatal(err)
		}
	}

	e.mustRemove(p, c)
	e.nothingLeft()
}

func idTaken(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)

	reserved, err := p.Reserve(e.Context(), c.spec)
	if err != nil {
		e.Fatal(err)
	}

	e.Occupy(e, reserved.ID)
	e.foreign = e.Inspect().Foreign

	c.spec.ID, c.spec.Node = reserved.ID, reserved.Node

	m := e.mustCreate(p, c)
	if m.ID == reserved.ID {
		e.Errorf("the machine has the id %d that is another's", m.ID)
	}

	e.mustRemove(p, c)
	e.nothingLeft()
}

func notOwned(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	m := e.mustCreate(p, c)

	for _, thief := range []hypervisor.Provider{p, e.connect(operatorA), e.connect(operatorB)} {
		other := e.claim(2)
		other.spec.ID = m.ID

		refusal := hypervisor.NotOwned
		if e.NamesHoldOwner {
			refusal = hypervisor.NotFound
		}

		e.kind(thief.Delete(e.Context(), other.ref()), refusal)

		_, err := thief.Get(e.Context(), other.ref())
		e.kind(err, hypervisor.NotFound)
	}

	stranger := e.connect(operatorB)
	e.kind(stranger.Delete(e.Context(), c.ref()), hypervisor.NotOwned)
	e.only(c)
}

func adopts(e *env) {
	c := e.claim(1)
	m := e.mustCreate(e.connect(operatorA), c)

	// The claim's status was lost.
	lost := e.claim(1)
	p := e.connect(operatorA)

	again := e.mustCreate(p, lost)
	if again.ID != m.ID || lost.seed != 0 {
		e.Errorf("want machine %d adopted, got %+v", m.ID, again)
	}

	e.only(c)
	e.mustRemove(p, lost)
	e.nothingLeft()
}

func lists(e *env) {
	p := e.connect(operatorA)
	one, two := e.claim(1), e.claim(2)
	m := e.mustCreate(p, one)
	gone := e.mustCreate(p, two)
	e.Vanish(e, gone.ID)

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA)} {
		e.eventually("list gives the machine", func() bool {
			all, err := provider.List(e.Context())
			if err != nil {
				e.Fatal(err)
			}

			return slices.ContainsFunc(all, func(x hypervisor.Machine) bool {
				return x.ID == m.ID && x.Owner == one.spec.Owner && x.State == hypervisor.StateRunning
			})
		})
	}

	// Only a process that does not know the second claim takes its cloud-init ISO for remains.
	fresh := e.connect(operatorA)

	all, err := fresh.List(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	for _, x := range all {
		if x.State == hypervisor.StateRemains {
			if x.Owner.UID != two.spec.Owner.UID {
				e.Errorf("remains of an unknown owner: %+v", x)
			}

			if err := Remove(e.Context(), fresh, hypervisor.MachineRef{ID: x.ID, Owner: x.Owner}); err != nil {
				e.Error(err)
			}
		}
	}

	e.mustRemove(p, one)
	e.nothingLeft()
}

func twoOperators(e *env) {
	a, b := e.connect(operatorA), e.connect(operatorB)
	ca, cb := e.claim(1), e.claim(2)
	e.mustCreate(a, ca)
	e.mustCreate(b, cb)

	for p, c := range map[hypervisor.Provider]*claim{a: ca, b: cb} {
		e.eventually("each lists its own", func() bool {
			all, err := p.List(e.Context())

			return err == nil && len(all) == 1 && all[0].Owner == c.spec.Owner
		})
	}

	e.mustRemove(a, ca)
	e.only(cb)
	e.mustRemove(b, cb)
	e.nothingLeft()
}

func wakes(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	m := e.mustCreate(p, c)

	e.eventually("the owner is woken while it is made", func() bool { return e.woken(c.spec.Owner.UID) > 0 })

	e.eventually("get says running", func() bool {
		got, err := p.Get(e.Context(), c.ref())

		return err == nil && got.State == hypervisor.StateRunning
	})

	before := e.woken(c.spec.Owner.UID)
	e.PowerOff(m.ID)
	e.eventually("the owner is woken when it stops", func() bool { return e.woken(c.spec.Owner.UID) > before })
}

func capacity(e *env) {
	p := e.connect(operatorA)

	before, err := p.Capacity(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	e.mustCreate(p, e.claim(1))

	after, err := p.Capacity(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	if len(before.Nodes) == 0 || before.Free.Memory > before.Total.Memory || before.Total.CPU == 0 {
		e.Errorf("implausible: %+v", before)
	}

	if before.Free.Memory-after.Free.Memory < e.Shape.Memory {
		e.Errorf("a machine of %d bytes left %d of %d free", e.Shape.Memory, after.Free.Memory, before.Free.Memory)
	}

	e.eventually("one machine more is counted", func() bool {
		got, err := p.Capacity(e.Context())

		return err == nil && got.Machines == before.Machines+1
	})
}

func kinds(e *env) {
	p := e.connect(operatorA)

	if _, err := p.Check(e.Context()); err != nil {
		e.Error(err)
	}

	found, err := p.Resolve(e.Context(), e.Template, e.Shape)
	if err != nil || len(found) == 0 {
		e.Errorf("resolve: %v (%v)", found, err)
	}

	_, err = p.Resolve(e.Context(), hypervisor.TemplateRef{Name: "there-is-no-such-template"}, e.Shape)
	e.kind(err, hypervisor.NotFound)

	big := e.Shape
	big.Memory = 1 << 50
	_, err = p.Resolve(e.Context(), e.Template, big)
	e.kind(err, hypervisor.Rejected)

	c := e.claim(1)
	c.spec.Shape = big
	_, err = p.Reserve(e.Context(), c.spec)
	e.kind(err, hypervisor.NoCapacity)
	e.nothingLeft()
}

func many(e *env) {
	const machines = 6

	p := e.connect(operatorA)
	ids := make([]int, machines)

	var wg sync.WaitGroup

	for n := range machines {
		wg.Go(func() {
			c := e.claim(n + 1)

			m, err := create(e.Context(), p, c)
			if err != nil {
				e.Error(err)

				return
			}

			ids[n] = m.ID

			if err := Remove(e.Context(), p, c.ref()); err != nil {
				e.Error(err)
			}
		})
	}

	wg.Wait()
	slices.Sort(ids)

	if len(slices.Compact(ids)) != machines {
		e.Errorf("ids were given twice: %v", ids)
	}

	e.nothingLeft()
}
