// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/runners/demand"
)

const minRuns = 500

func parameters() *gopter.TestParameters {
	out := gopter.DefaultTestParameters()
	out.MinSuccessfulTests = minRuns

	return out
}

// input makes any pool in any state from one seed.
func input(seed int64) demand.Input {
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	states := []demand.ClaimState{
		demand.ClaimPending, demand.ClaimBooting, demand.ClaimIdle, demand.ClaimBusy, demand.ClaimFinishing,
	}
	in := demand.Input{
		Max: rng.IntN(20), Queued: rng.IntN(30), Now: start(),
		ScaleDownDelay: time.Duration(rng.IntN(600)) * time.Second,
	}
	in.Min = rng.IntN(in.Max + 1)

	if rng.IntN(2) == 0 {
		in.IdleTimeout = time.Duration(1+rng.IntN(900)) * time.Second
	}

	if rng.IntN(2) == 0 {
		in.MaxLifetime = time.Duration(1+rng.IntN(1800)) * time.Second
	}

	for i := range rng.IntN(25) {
		created := start().Add(-time.Duration(rng.IntN(1800)) * time.Second)
		in.Claims = append(in.Claims, demand.Claim{
			Name: fmt.Sprintf("c%02d", i), State: states[rng.IntN(len(states))], CreatedAt: created,
			IdleSince: created.Add(time.Duration(rng.Int64N(int64(start().Sub(created)) + 1))),
		})
	}

	return in
}

func count(in demand.Input, states ...demand.ClaimState) int {
	n := 0

	for _, claim := range in.Claims {
		if slices.Contains(states, claim.State) {
			n++
		}
	}

	return n
}

// apply does what was decided, and lets deleted and finishing machines be gone.
func apply(in demand.Input, out demand.Decision, round int) demand.Input {
	next := in
	next.Claims = nil

	for _, claim := range in.Claims {
		gone := slices.ContainsFunc(out.Delete, func(d demand.Deletion) bool { return d.Name == claim.Name })
		if !gone && claim.State != demand.ClaimFinishing {
			next.Claims = append(next.Claims, claim)
		}
	}

	for i := range out.Create {
		next.Claims = append(next.Claims, demand.Claim{
			Name: fmt.Sprintf("new-%d-%d", round, i), State: demand.ClaimPending, CreatedAt: in.Now,
		})
	}

	return next
}

// Feature: hyperfleet-operator, Property 9: RunnerPool Scaling Behavior.
func TestPropertyScaling(t *testing.T) {
	t.Parallel()

	properties := gopter.NewProperties(parameters())

	properties.Property("one pass keeps the bounds, spares busy machines and makes none twice", prop.ForAll(
		func(seed int64) string {
			in := input(seed)
			out := demand.Desired(in)
			waiting := count(in, demand.ClaimPending, demand.ClaimBooting, demand.ClaimIdle)

			switch {
			case out.Desired < in.Min || out.Desired > in.Max:
				return "desired is out of bounds"
			case out.Create > 0 && len(in.Claims)+out.Create > in.Max:
				return "more machines than the maximum"
			case len(out.Delete) == 0 && out.Create > max(in.Queued-waiting, in.Min-waiting-count(in, demand.ClaimBusy), 0):
				return "more machines than are needed"
			case out.Create < 0 || out.After < 0 || out.Reason == "" || out.Message == "":
				return "not a decision"
			}

			return onlyRightOnes(in, out)
		}, gen.Int64()))

	properties.Property("repeated passes reach the desired count and then rest", prop.ForAll(
		func(seed int64) string {
			in := input(seed)

			for round := range 3 {
				in = apply(in, demand.Desired(in), round)
			}

			out := demand.Desired(in)

			switch {
			case out.Create != 0 || len(out.Delete) != 0:
				return fmt.Sprintf("still creates %d and deletes %d", out.Create, len(out.Delete))
			case len(in.Claims) < out.Desired:
				return fmt.Sprintf("%d machines, %d desired", len(in.Claims), out.Desired)
			}

			// Whatever is above it is busy, on its way, kept for a queued job, or within its delay.
			in.Now = in.Now.Add(time.Hour)
			in.Queued, in.MaxLifetime, in.IdleTimeout = 0, 0, 0
			in = apply(in, demand.Desired(in), 4)
			kept := max(demand.Desired(in).Desired, count(in, demand.ClaimBusy, demand.ClaimPending, demand.ClaimBooting))

			if len(in.Claims) != kept {
				return fmt.Sprintf("%d machines are left when nothing is queued, want %d", len(in.Claims), kept)
			}

			return ""
		}, gen.Int64()))

	properties.TestingRun(t)
}

// onlyRightOnes says what is wrong with the machines chosen for deletion.
func onlyRightOnes(in demand.Input, out demand.Decision) string {
	seen := map[string]bool{}

	for _, gone := range out.Delete {
		i := slices.IndexFunc(in.Claims, func(c demand.Claim) bool { return c.Name == gone.Name })

		switch {
		case i < 0 || seen[gone.Name]:
			return "deletes what is not there"
		case in.Claims[i].State == demand.ClaimBusy, in.Claims[i].State == demand.ClaimFinishing:
			return "deletes a busy or finishing machine"
		case gone.Reason == demand.DeleteSurplus && in.Claims[i].State != demand.ClaimIdle:
			return "scales down a machine that is not idle"
		case gone.Reason == demand.DeleteSurplus && out.Create > 0:
			return "scales down and up at once"
		}

		seen[gone.Name] = true
	}

	return ""
}

// Feature: hyperfleet-operator, Property 10: VM Lifecycle Policy Enforcement.
func TestPropertyLifecycle(t *testing.T) {
	t.Parallel()

	properties := gopter.NewProperties(parameters())

	properties.Property("machines past a limit are ended, others are not, and the limit is woken up for", prop.ForAll(
		func(seed int64) string {
			in := input(seed)
			out := demand.Desired(in)

			for _, claim := range in.Claims {
				old := in.MaxLifetime > 0 && in.Now.Sub(claim.CreatedAt) >= in.MaxLifetime
				stale := claim.State == demand.ClaimIdle && in.IdleTimeout > 0 && in.Now.Sub(claim.IdleSince) >= in.IdleTimeout
				waits := claim.State == demand.ClaimPending || claim.State == demand.ClaimBooting || claim.State == demand.ClaimIdle
				ended := slices.ContainsFunc(out.Delete, func(d demand.Deletion) bool {
					return d.Name == claim.Name && d.Reason != demand.DeleteSurplus
				})

				if ended != (waits && (old || stale)) {
					return fmt.Sprintf("%s: ended %t, old %t, idle too long %t", claim.Name, ended, old, stale)
				}

				if waits && !old && in.MaxLifetime > 0 && (out.After == 0 || out.After > claim.CreatedAt.Add(in.MaxLifetime).Sub(in.Now)) {
					return claim.Name + " outlives its limit unseen"
				}
			}

			return ""
		}, gen.Int64()))

	properties.Property("ended machines are replaced", prop.ForAll(
		func(seed int64) string {
			in := input(seed)
			in.Queued = 0
			first := demand.Desired(in)
			after := apply(in, first, 0)
			after = apply(after, demand.Desired(after), 1)

			if len(after.Claims) < in.Min {
				return fmt.Sprintf("%d machines are left of a minimum of %d", len(after.Claims), in.Min)
			}

			return ""
		}, gen.Int64()))

	properties.TestingRun(t)
}
