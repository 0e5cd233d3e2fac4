// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Steps of a random run. stepCount is their number.
const (
	stepCreate = iota
	stepGet
	stepDelete
	stepList
	stepPowerOff
	stepVanish
	stepRestart
	stepRelease
	stepCount
)

// claimCount is the number of claims in RunSteps.
const claimCount = 2

// MaxStep is the highest step of RunSteps.
const MaxStep = stepCount*claimCount - 1

// RunSteps runs a sequence of actions of callers, guests and people, each from 0 to MaxStep, on a hypervisor of its own.
// After each action, it checks the guarantees of the Provider interface against the real state of the hypervisor. It
// returns a description of the first problem, or "" if there is none.
func RunSteps[T TB](t T, newHarness HarnessFunc[T], steps []int) string {
	t.Helper()

	return newEnv(t, newHarness).runSteps(steps)
}

// runSteps runs the steps and then deletes the machines. It returns a description of the first
// problem, or "" if there is none.
func (e *env) runSteps(steps []int) string {
	var claims [claimCount]*claim
	for i := range claims {
		claims[i] = e.newClaim(i + 1)
		claims[i].spec.Standby = i > 0
	}

	options := e.newOptions(operatorA)
	options.ListClaimed = func(context.Context, string) ([]hypervisor.ClaimedMachine, error) {
		var machines []hypervisor.ClaimedMachine

		for _, c := range claims {
			if c.spec.ID != 0 {
				machines = append(machines, hypervisor.ClaimedMachine{ID: c.spec.ID})
			}
		}

		return machines, nil
	}

	provider := e.Connect(e.TB, options)
	defer func() { provider.Close() }()

	for _, step := range steps {
		c := claims[step/stepCount]

		if step%stepCount == stepRestart {
			provider.Close()
			provider = e.Connect(e.TB, options)

			continue
		}

		if problem := e.runStep(provider, c, step%stepCount); problem != "" {
			return problem
		}

		if problem := e.checkInvariants(claims[:]); problem != "" {
			return problem
		}
	}

	for _, c := range claims {
		if err := Delete(e.Context(), provider, c.ref()); err != nil {
			return err.Error()
		}
	}

	if state := e.Inspect(); len(state.Machines)+len(state.Seeds) > 0 {
		return fmt.Sprintf("want nothing left, got %+v", state)
	} else if state.Foreign != e.initialForeign {
		return "objects of others have changed"
	}

	return ""
}

// runStep runs one step. It returns a description of an error whose kind the step must not return,
// or "".
func (e *env) runStep(p hypervisor.Provider, c *claim, step int) string {
	switch step {
	case stepCreate:
		_, err := c.advance(e.Context(), p)

		return describeUnexpected(err, hypervisor.Busy, hypervisor.UnknownOutcome)
	case stepGet:
		_, err := p.Get(e.Context(), c.ref())

		return describeUnexpected(err, hypervisor.NotFound, hypervisor.Busy)
	case stepDelete:
		return describeUnexpected(p.Delete(e.Context(), c.ref()), hypervisor.NotFound, hypervisor.Busy, hypervisor.UnknownOutcome)
	case stepList:
		_, err := p.List(e.Context())

		return describeUnexpected(err)
	case stepRelease:
		endStandby(c)
	case stepPowerOff:
		if c.spec.ID != 0 {
			e.PowerOff(c.spec.ID)
		}
	case stepVanish:
		for _, m := range e.Inspect().Machines {
			if m.ClaimUID == c.spec.Owner.UID {
				e.DeleteExternally(e.TB, m.ID)
			}
		}
	}

	return ""
}

// describeUnexpected returns a description of err if its kind is none of the expected kinds. It
// returns "" for a nil error.
func describeUnexpected(err error, expected ...hypervisor.Kind) string {
	for _, kind := range expected {
		if hypervisor.Is(err, kind) {
			return ""
		}
	}

	if err == nil {
		return ""
	}

	return fmt.Sprintf("unexpected error of kind %q: %v", hypervisor.KindOf(err), err)
}

// checkInvariants checks the conditions that must always be true. Each claim has at most one machine.
// A machine is started at most once, and not while it is on standby. Objects of others do not change.
// It returns a description of the first violation, or "".
func (e *env) checkInvariants(claims []*claim) string {
	state := e.Inspect()
	machines := map[string]int{}

	for _, m := range state.Machines {
		machines[m.ClaimUID]++

		if m.Starts > 1 {
			return fmt.Sprintf("machine %d was started %d times", m.ID, m.Starts)
		}
	}

	for _, c := range claims {
		if c.spec.Standby && slices.ContainsFunc(state.Machines, func(m ObservedMachine) bool {
			return m.ClaimUID == c.spec.Owner.UID && m.Starts > 0
		}) {
			return c.spec.Owner.Name + " was started, but it is on standby"
		}

		if machines[c.spec.Owner.UID] > 1 {
			return fmt.Sprintf("%s has %d machines", c.spec.Owner.Name, machines[c.spec.Owner.UID])
		}
	}

	if state.Foreign != e.initialForeign {
		return "objects of others have changed"
	}

	return ""
}
