// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// Numbers of random runs: briefRuns in every test run, soakRuns in `make soak`.
const (
	briefRuns = 6
	soakRuns  = 100
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

const (
	claimCount  = 2
	stepsPerRun = 12
)

// Property runs random sequences of actions of callers, guests and people. After each action, it
// checks the guarantees of the Provider interface against the real state of the hypervisor. Each
// sequence has its own hypervisor, so the property test can shrink a sequence that fails.
//
// Feature: hyperfleet-operator, Property 24: Provider Interface Implementation
func Property(t *testing.T, newHarness HarnessFunc) {
	t.Helper()

	runs := 0

	property.Check(t, "a provider keeps its guarantees", property.Options{Runs: soakRuns, Brief: briefRuns},
		prop.ForAll(func(steps []int) string {
			runs++
			problem := "the test ended before its last step"

			t.Run(strconv.Itoa(runs), func(t *testing.T) {
				problem = newEnv(t, newHarness).runSteps(steps)
			})

			return problem
		}, gen.SliceOfN(stepsPerRun, gen.IntRange(0, stepCount*claimCount-1))))
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
	options.ListClaimedIDs = func(context.Context) ([]int, error) {
		var ids []int

		for _, c := range claims {
			if c.spec.ID != 0 {
				ids = append(ids, c.spec.ID)
			}
		}

		return ids, nil
	}

	provider := e.Connect(e.T, options)
	defer func() { provider.Close() }()

	for _, step := range steps {
		c := claims[step/stepCount]

		if step%stepCount == stepRestart {
			provider.Close()
			provider = e.Connect(e.T, options)

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
				e.DeleteExternally(e.T, m.ID)
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
