// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// mustPrepare creates a standby machine and waits until it is prepared.
func (e *env) mustPrepare(p hypervisor.Provider, c *claim) hypervisor.Machine {
	e.Helper()

	c.spec.Standby = true

	m := e.mustCreate(p, c)
	if m.State != hypervisor.StatePrepared {
		e.Fatalf("want a prepared machine, got %+v", m)
	}

	return m
}

func testStandby(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)

	m := e.mustPrepare(p, c)
	if m.ID != c.spec.ID || (m.Node == "") != e.PlacesAtStart || m.Owner != c.spec.Owner || !m.Cloned {
		e.Errorf("the machine is incomplete: %+v", m)
	}

	if c.seedCalls != 0 {
		e.Errorf("the cloud-init seed of a standby machine was requested %d times, want never", c.seedCalls)
	}

	e.assertPrepared(c)

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA)} {
		got, err := provider.Get(e.Context(), c.ref())
		if err != nil || got.State != hypervisor.StatePrepared {
			e.Errorf("get: want a prepared machine, got %+v (%v)", got, err)
		}

		again, err := createMachine(e.Context(), provider, c)
		if err != nil || again.State != hypervisor.StatePrepared {
			e.Errorf("create: want a prepared machine, got %+v (%v)", again, err)
		}
	}

	e.assertPrepared(c)
	e.mustDelete(p, c)
	e.assertNothingLeft()
}

func testStandbyStart(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	prepared := e.mustPrepare(p, c)

	endStandby(c)

	m := e.mustCreate(p, c)
	if m.ID != prepared.ID || m.State != hypervisor.StateRunning || c.seedCalls != 1 {
		e.Errorf("want machine %d running with one cloud-init ISO, got %+v and %d cloud-init ISOs", prepared.ID, m, c.seedCalls)
	}

	e.assertStartedOnce(c)
	e.PowerOff(m.ID)
	e.mustDelete(p, c)
	e.assertNothingLeft()
}

func testStandbyStartInNewProcess(e *env) {
	c := e.newClaim(1)
	prepared := e.mustPrepare(e.connect(operatorA), c)

	// The claim's status was lost, too.
	lost := e.newClaim(1)
	p := e.connect(operatorA)

	m := e.mustCreate(p, lost)
	if m.ID != prepared.ID || lost.seedCalls != 1 {
		e.Errorf("want machine %d adopted with one cloud-init ISO, got %+v and %d cloud-init ISOs", prepared.ID, m, lost.seedCalls)
	}

	e.assertStartedOnce(lost)
	e.mustDelete(p, lost)
	e.assertNothingLeft()
}

func testStandbyDelete(e *env) {
	p := e.connect(operatorA)
	first, second := e.newClaim(1), e.newClaim(2)
	e.mustPrepare(p, first)
	e.mustPrepare(p, second)

	e.mustDelete(p, first)
	e.assertPrepared(second)

	// Another process than the one that created the machine deletes it.
	e.mustDelete(e.connect(operatorA), second)
	e.assertNothingLeft()
}

func testStandbyExternalDeletion(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	m := e.mustPrepare(p, c)
	e.DeleteExternally(e, m.ID)

	e.eventually("Get returns NotFound", func() bool {
		_, err := p.Get(e.Context(), c.ref())

		return hypervisor.Is(err, hypervisor.NotFound)
	})

	e.mustDelete(p, c)
	e.assertNothingLeft()
}

func testStandbyCapacity(e *env) {
	p := e.connect(operatorA)

	free := func() int64 {
		got, err := p.Capacity(e.Context())
		if err != nil {
			e.Fatal(err)
		}

		return got.Free.Memory
	}

	before := free()
	c := e.newClaim(1)
	e.mustPrepare(p, c)

	if got := free(); got != before {
		e.Errorf("a standby machine uses %d bytes of memory, want none", before-got)
	}

	endStandby(c)
	e.mustCreate(p, c)

	if got := free(); before-got < e.Shape.Memory {
		e.Errorf("want a started machine to use %d bytes of memory, got %d", e.Shape.Memory, before-got)
	}
}

func testEnsureRunning(e *env) {
	p := e.connect(operatorA)
	c := e.newClaim(1)
	e.mustCreate(p, c)

	c.spec.Standby = true

	for _, provider := range []hypervisor.Provider{p, e.connect(operatorA)} {
		m, err := c.advance(e.Context(), provider)
		if err != nil || m.State != hypervisor.StateRunning {
			e.Errorf("want a running machine, got %+v (%v)", m, err)
		}
	}

	e.assertStartedOnce(c)
	e.mustDelete(p, c)
	e.assertNothingLeft()
}
