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

// How many random lives are tried, at all times and in `make soak`.
const (
	briefLives = 6
	soakLives  = 100
)

// What can happen in a random life.
const (
	stepCreate = iota
	stepGet
	stepDelete
	stepList
	stepPowerOff
	stepVanish
	stepRestart
	stepRelease
	stepKinds
)

const (
	claimsAtOnce = 2
	lifeSteps    = 12
)

// Property runs random sequences of what callers, guests and people do to a provider,
// and holds the promises of the interface against what really is on the hypervisor. Each
// sequence has a hypervisor of its own, so that one that fails can be made smaller.
//
// Feature: hyperfleet-operator, Property 24: Provider Interface Implementation
func Property(t *testing.T, fresh New) {
	t.Helper()

	lives := 0

	property.Check(t, "a provider keeps its promises whatever happens", property.Options{Runs: soakLives, Brief: briefLives},
		prop.ForAll(func(steps []int) string {
			lives++
			problem := "the test ended before the life did"

			t.Run(strconv.Itoa(lives), func(t *testing.T) {
				problem = newEnv(t, fresh).randomLife(steps)
			})

			return problem
		}, gen.SliceOfN(lifeSteps, gen.IntRange(0, stepKinds*claimsAtOnce-1))))
}

// randomLife plays the steps and cleans up. It gives what went wrong, or "".
func (e *env) randomLife(steps []int) string {
	var claims [claimsAtOnce]*claim
	for i := range claims {
		claims[i] = e.claim(i + 1)
		claims[i].spec.Standby = i > 0
	}

	options := e.options(operatorA)
	options.Claimed = func(context.Context) ([]int, error) {
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
		c := claims[step/stepKinds]

		if step%stepKinds == stepRestart {
			provider.Close()
			provider = e.Connect(e.T, options)

			continue
		}

		if problem := e.play(provider, c, step%stepKinds); problem != "" {
			return problem
		}

		if problem := e.promises(claims[:]); problem != "" {
			return problem
		}
	}

	for _, c := range claims {
		if err := Remove(e.Context(), provider, c.ref()); err != nil {
			return err.Error()
		}
	}

	if state := e.Inspect(); len(state.Machines)+len(state.Seeds) > 0 {
		return fmt.Sprintf("left behind: %+v", state)
	} else if state.Foreign != e.foreign {
		return "machines of others were touched"
	}

	return ""
}

// play takes one step. Errors are part of life; only those that can't be right count.
func (e *env) play(p hypervisor.Provider, c *claim, step int) string {
	switch step {
	case stepCreate:
		_, err := c.further(e.Context(), p)

		return odd(err, hypervisor.Busy, hypervisor.UnknownOutcome)
	case stepGet:
		_, err := p.Get(e.Context(), c.ref())

		return odd(err, hypervisor.NotFound, hypervisor.Busy)
	case stepDelete:
		return odd(p.Delete(e.Context(), c.ref()), hypervisor.NotFound, hypervisor.Busy, hypervisor.UnknownOutcome)
	case stepList:
		_, err := p.List(e.Context())

		return odd(err)
	case stepRelease:
		release(c)
	case stepPowerOff:
		if c.spec.ID != 0 {
			e.PowerOff(c.spec.ID)
		}
	case stepVanish:
		for _, m := range e.Inspect().Machines {
			if m.ClaimUID == c.spec.Owner.UID {
				e.Vanish(e.T, m.ID)
			}
		}
	}

	return ""
}

// odd describes an error whose kind is none of the expected.
func odd(err error, expected ...hypervisor.Kind) string {
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

// promises makes sure of what holds at every moment: at most one machine per claim,
// started at most once and not while it is held, and nobody else's touched.
func (e *env) promises(claims []*claim) string {
	state := e.Inspect()
	machines := map[string]int{}

	for _, m := range state.Machines {
		machines[m.ClaimUID]++

		if m.Starts > 1 {
			return fmt.Sprintf("machine %d was started %d times", m.ID, m.Starts)
		}
	}

	for _, c := range claims {
		if c.spec.Standby && slices.ContainsFunc(state.Machines, func(m Seen) bool {
			return m.ClaimUID == c.spec.Owner.UID && m.Starts > 0
		}) {
			return c.spec.Owner.Name + " was started though it is held"
		}

		if machines[c.spec.Owner.UID] > 1 {
			return fmt.Sprintf("%s has %d machines", c.spec.Owner.Name, machines[c.spec.Owner.UID])
		}
	}

	if state.Foreign != e.foreign {
		return "machines of others were touched"
	}

	return ""
}
