// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// mustHold has a machine made and held.
func (e *env) mustHold(p hypervisor.Provider, c *claim) hypervisor.Machine {
	e.Helper()

	c.spec.Standby = true

	m := e.mustCreate(p, c)
	if m.State != hypervisor.StatePrepared {
		e.Fatalf("want it prepared, got %+v", m)
	}

	return m
}

func holds(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)

	m := e.mustHold(p, c)
	if m.ID != c.spec.ID || (m.Node == "") != e.PlacesAtStart || m.Owner != c.spec.Owner || !m.Cloned {
		e.Errorf("the machine is incomplete: %+v", m)
	}

	if c.seed != 0 {
		e.Errorf("the cloud-init ISO of a held machine was asked for %d times", c.seed)
	}

	e.held(c)

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA)} {
		got, err := provider.Get(e.Context(), c.ref())
		if err != nil || got.State != hypervisor.StatePrepared {
			e.Errorf("get: want it prepared, got %+v (%v)", got, err)
		}

		again, err := create(e.Context(), provider, c)
		if err != nil || again.State != hypervisor.StatePrepared {
			e.Errorf("create: want it prepared, got %+v (%v)", again, err)
		}
	}

	e.held(c)
	e.mustRemove(p, c)
	e.nothingLeft()
}

func releases(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	held := e.mustHold(p, c)

	release(c)

	m := e.mustCreate(p, c)
	if m.ID != held.ID || m.State != hypervisor.StateRunning || c.seed != 1 {
		e.Errorf("want machine %d running with one cloud-init ISO, got %+v and %d cloud-init ISOs", held.ID, m, c.seed)
	}

	e.only(c)
	e.PowerOff(m.ID)
	e.mustRemove(p, c)
	e.nothingLeft()
}

func releasedByAnother(e *env) {
	c := e.claim(1)
	held := e.mustHold(e.connect(operatorA), c)

	// The claim's status was lost as well.
	lost := e.claim(1)
	p := e.connect(operatorA)

	m := e.mustCreate(p, lost)
	if m.ID != held.ID || lost.seed != 1 {
		e.Errorf("want machine %d adopted with one cloud-init ISO, got %+v and %d cloud-init ISOs", held.ID, m, lost.seed)
	}

	e.only(lost)
	e.mustRemove(p, lost)
	e.nothingLeft()
}

func deletesHeld(e *env) {
	p := e.connect(operatorA)
	one, two := e.claim(1), e.claim(2)
	e.mustHold(p, one)
	e.mustHold(p, two)

	e.mustRemove(p, one)
	e.held(two)

	// By a process that did not make it.
	e.mustRemove(e.connect(operatorA), two)
	e.nothingLeft()
}

func heldVanishes(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	m := e.mustHold(p, c)
	e.Vanish(e, m.ID)

	e.eventually("get says gone", func() bool {
		_, err := p.Get(e.Context(), c.ref())

		return hypervisor.Is(err, hypervisor.NotFound)
	})

	e.mustRemove(p, c)
	e.nothingLeft()
}

func heldCapacity(e *env) {
	p := e.connect(operatorA)

	free := func() int64 {
		got, err := p.Capacity(e.Context())
		if err != nil {
			e.Fatal(err)
		}

		return got.Free.Memory
	}

	before := free()
	c := e.claim(1)
	e.mustHold(p, c)

	if got := free(); got != before {
		e.Errorf("a held machine takes %d bytes of memory", before-got)
	}

	release(c)
	e.mustCreate(p, c)

	if got := free(); before-got < e.Shape.Memory {
		e.Errorf("a released machine of %d bytes takes %d", e.Shape.Memory, before-got)
	}
}

func holdsLate(e *env) {
	p := e.connect(operatorA)
	c := e.claim(1)
	e.mustCreate(p, c)

	c.spec.Standby = true

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA)} {
		m, err := c.further(e.Context(), provider)
		if err != nil || m.State != hypervisor.StateRunning {
			e.Errorf("want it running, got %+v (%v)", m, err)
		}
	}

	e.only(c)
	e.mustRemove(p, c)
	e.nothingLeft()
}
