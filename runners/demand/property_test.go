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

	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

const minRuns = 200

// checkProperty checks a property of the pure decision.
func checkProperty(t *testing.T, name string, holds gopter.Prop) {
	t.Helper()
	property.Check(t, name, property.Options{Runs: minRuns}, holds)
}

// newInput returns a pool in a random state that the seed determines.
func newInput(seed int64) demand.Input {
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	states := []demand.ClaimState{
		demand.ClaimPending, demand.ClaimBooting, demand.ClaimIdle, demand.ClaimBusy, demand.ClaimFinishing,
		demand.ClaimStandby,
	}
	in := demand.Input{
		Max: rng.IntN(20), Queued: rng.IntN(30), Now: getStartTime(),
		ScaleDownDelay: time.Duration(rng.IntN(600)) * time.Second,
	}
	in.Min = rng.IntN(in.Max + 1)

	if rng.IntN(2) == 0 {
		in.IdleTimeout = time.Duration(1+rng.IntN(900)) * time.Second
	}

	if rng.IntN(2) == 0 {
		in.MaxLifetime = time.Duration(1+rng.IntN(1800)) * time.Second
	}

	if rng.IntN(2) == 0 {
		in.WarmIdle, in.WarmStopped = rng.IntN(6), rng.IntN(6)
	}

	for i := range rng.IntN(25) {
		state := states[rng.IntN(len(states))]
		created := getStartTime().Add(-time.Duration(rng.IntN(1800)) * time.Second)
		stuck := ""
		if rng.IntN(8) == 0 {
			stuck = []string{demand.DeleteNoCapacity, demand.DeleteNotReady}[rng.IntN(2)]
		}

		in.Claims = append(in.Claims, demand.Claim{
			Name: fmt.Sprintf("c%02d", i), State: state, CreatedAt: created,
			IdleSince: created.Add(time.Duration(rng.Int64N(int64(getStartTime().Sub(created)) + 1))),
			Prepared:  rng.IntN(2) == 0, Outdated: rng.IntN(4) == 0,
			// A machine is bound to a job only after its start.
			StuckReason: stuck,
			Bound:       state != demand.ClaimStandby && rng.IntN(8) == 0,
		})
	}

	return in
}

// countClaims counts the machines that fulfill the condition.
func countClaims(in demand.Input, are func(demand.Claim) bool) int {
	n := 0

	for _, claim := range in.Claims {
		if are(claim) {
			n++
		}
	}

	return n
}

func countByState(in demand.Input, states ...demand.ClaimState) int {
	return countClaims(in, func(claim demand.Claim) bool { return slices.Contains(states, claim.State) })
}

// isDeletedBy returns whether the decision deletes the machine.
func isDeletedBy(out demand.Decision, name string) bool {
	return slices.ContainsFunc(out.Delete, func(d demand.Deletion) bool { return d.Name == name })
}

// applyDecision applies the decision, and removes deleted and finishing machines.
func applyDecision(in demand.Input, out demand.Decision, round int) demand.Input {
	next := in
	next.Claims = nil

	for _, claim := range in.Claims {
		if slices.Contains(out.Activate, claim.Name) {
			claim.State, claim.Prepared = demand.ClaimBooting, false
		}

		if !isDeletedBy(out, claim.Name) && claim.State != demand.ClaimFinishing {
			next.Claims = append(next.Claims, claim)
		}
	}

	for i := range out.Create {
		next.Claims = append(next.Claims, demand.Claim{
			Name: fmt.Sprintf("new-%d-%d", round, i), State: demand.ClaimPending, CreatedAt: in.Now,
		})
	}

	for i := range out.CreateStandby {
		next.Claims = append(next.Claims, demand.Claim{
			Name: fmt.Sprintf("standby-%d-%d", round, i), State: demand.ClaimStandby, CreatedAt: in.Now, Prepared: true,
		})
	}

	return next
}

// Feature: hyperfleet-operator, Property 9: RunnerPool Scaling Behavior.
func TestPropertyScaling(t *testing.T) {
	t.Parallel()

	checkProperty(t, "one pass keeps the bounds, spares busy machines and makes none twice", prop.ForAll(
		func(seed int64) string {
			in := newInput(seed)
			out := demand.Decide(in)
			waiting := countByState(in, demand.ClaimPending, demand.ClaimBooting, demand.ClaimIdle)

			switch {
			case out.Desired < in.Min || out.Desired > in.Max:
				return "desired is out of bounds"
			case out.Create+out.CreateStandby > 0 && len(in.Claims)+out.Create+out.CreateStandby > in.Max:
				return "more machines than the maximum"
			case len(out.Delete) == 0 && out.Create+len(out.Activate) >
				max(in.Queued+in.WarmIdle-waiting, in.Min-waiting-countByState(in, demand.ClaimBusy), 0):
				return "more machines than are needed"
			case out.Create < 0 || out.CreateStandby < 0 || out.RequeueAfter < 0 || out.Reason == "" || out.Message == "":
				return "not a decision"
			case out.Create > 0 && countStartable(in, out) > 0:
				return "a machine is created although a standby machine could be started"
			}

			return findWrongDeletion(in, out)
		}, gen.Int64()))

	checkProperty(t, "repeated passes reach the desired count and then rest", prop.ForAll(
		func(seed int64) string {
			in := newInput(seed)

			// Outdated machines are replaced a few at a time, so this takes several rounds, and time in which
			// new machines become ready.
			for round := range 60 {
				in = finishCreation(applyDecision(in, demand.Decide(in), round))
			}

			out := demand.Decide(in)

			switch {
			case out.Create+out.CreateStandby+len(out.Activate) != 0 || len(out.Delete) != 0:
				return fmt.Sprintf("still creates %d and %d, starts %d and deletes %d",
					out.Create, out.CreateStandby, len(out.Activate), len(out.Delete))
			case len(in.Claims)-countByState(in, demand.ClaimStandby) < out.Desired:
				return fmt.Sprintf("%d machines, %d desired", len(in.Claims), out.Desired)
			case countByState(in, demand.ClaimStandby) > in.WarmStopped:
				return "more on standby than are wanted"
			}

			// Machines above this number are busy, starting, kept for a queued job, or within their delay.
			in.Now = in.Now.Add(time.Hour)
			in.Queued, in.MaxLifetime, in.IdleTimeout = 0, 0, 0

			for round := range 60 {
				in = finishCreation(applyDecision(in, demand.Decide(in), 60+round))
			}

			kept := max(demand.Decide(in).Desired, countByState(in, demand.ClaimBusy, demand.ClaimPending, demand.ClaimBooting)+countBoundIdle(in))

			if remaining := len(in.Claims) - countByState(in, demand.ClaimStandby); remaining != kept {
				return fmt.Sprintf("%d machines are left when nothing is queued, want %d", remaining, kept)
			}

			return ""
		}, gen.Int64()))
}

// finishCreation lets new machines become ready. Pending machines stay pending, because they count for a job
// that does not arrive.
func finishCreation(in demand.Input) demand.Input {
	for i := range in.Claims {
		in.Claims[i].Prepared = true
		in.Claims[i].StuckReason = ""
	}

	return in
}

// countStartable counts the standby machines that the decision could start and does not start.
func countStartable(in demand.Input, out demand.Decision) int {
	return countClaims(in, func(claim demand.Claim) bool {
		return claim.State == demand.ClaimStandby && !claim.Outdated && claim.StuckReason == "" && !isDeletedBy(out, claim.Name) &&
			!slices.Contains(out.Activate, claim.Name)
	})
}

// countBoundIdle counts the idle machines that are bound to a job.
func countBoundIdle(in demand.Input) int {
	return countClaims(in, func(claim demand.Claim) bool { return claim.State == demand.ClaimIdle && claim.Bound })
}

// Feature: hyperfleet-operator, Property 9: RunnerPool Scaling Behavior.
func TestPropertyPausedAndOutdated(t *testing.T) {
	t.Parallel()

	checkProperty(t, "a paused pool does nothing", prop.ForAll(
		func(seed int64) bool {
			in := newInput(seed)
			in.Paused = true
			out := demand.Decide(in)

			return out.Create+out.CreateStandby+len(out.Activate)+len(out.Delete) == 0 && out.Reason == demand.ReasonPaused
		}, gen.Int64()))

	checkProperty(t, "at most a quarter of the machines, or one, are replaced at a time", prop.ForAll(
		func(seed int64) string {
			in := newInput(seed)

			going := countClaims(in, func(claim demand.Claim) bool { return claim.Outdated && claim.State == demand.ClaimFinishing })

			if next := countReplaced(in); next > 0 && next+going > max(1, len(in.Claims)/4) {
				return fmt.Sprintf("%d of %d go, %d are going", next, len(in.Claims), going)
			}

			return ""
		}, gen.Int64()))
}

// countReplaced counts the outdated machines that the decision deletes.
func countReplaced(in demand.Input) int {
	n := 0

	for _, deletion := range demand.Decide(in).Delete {
		if deletion.Reason == demand.DeleteOutdated {
			n++
		}
	}

	return n
}

// findWrongDeletion describes a deletion that is wrong.
func findWrongDeletion(in demand.Input, out demand.Decision) string {
	seen := map[string]bool{}

	for _, deletions := range out.Delete {
		i := slices.IndexFunc(in.Claims, func(c demand.Claim) bool { return c.Name == deletions.Name })

		switch {
		case i < 0 || seen[deletions.Name]:
			return "deletes what is not there"
		case in.Claims[i].State == demand.ClaimBusy, in.Claims[i].State == demand.ClaimFinishing:
			return "deletes a busy or finishing machine"
		case deletions.Reason == demand.DeleteSurplus && in.Claims[i].State != demand.ClaimIdle && in.Claims[i].State != demand.ClaimStandby:
			return "scales down a machine that is not idle"
		case deletions.Reason == demand.DeleteSurplus && in.Claims[i].State == demand.ClaimIdle && out.Create+len(out.Activate) > 0:
			return "scales down and up at once"
		case deletions.Reason == demand.DeleteOutdated && (!in.Claims[i].Outdated || in.Claims[i].Bound):
			return "replaces a machine that is not outdated, or that is bound to a job"
		case slices.Contains(out.Activate, deletions.Name):
			return "starts and deletes a machine at once"
		}

		seen[deletions.Name] = true
	}

	return ""
}

// Feature: hyperfleet-operator, Property 10: VM Lifecycle Policy Enforcement.
func TestPropertyLifecycle(t *testing.T) {
	t.Parallel()

	checkProperty(t, "machines past a limit are ended, others are not, and the limit is woken up for", prop.ForAll(
		func(seed int64) string {
			in := newInput(seed)
			out := demand.Decide(in)

			for _, claim := range in.Claims {
				old := in.MaxLifetime > 0 && in.Now.Sub(claim.CreatedAt) >= in.MaxLifetime
				stale := claim.State == demand.ClaimIdle && in.IdleTimeout > 0 && in.Now.Sub(claim.IdleSince) >= in.IdleTimeout
				waits := claim.State != demand.ClaimBusy && claim.State != demand.ClaimFinishing
				ended := slices.ContainsFunc(out.Delete, func(d demand.Deletion) bool {
					return d.Name == claim.Name && (d.Reason == demand.DeleteMaxLifetime || d.Reason == demand.DeleteIdleTimeout)
				})
				stale = stale && !claim.Bound

				if ended != (waits && (old || stale)) {
					return fmt.Sprintf("%s: ended %t, old %t, idle too long %t", claim.Name, ended, old, stale)
				}

				if waits && !old && in.MaxLifetime > 0 && (out.RequeueAfter == 0 || out.RequeueAfter > claim.CreatedAt.Add(in.MaxLifetime).Sub(in.Now)) {
					return claim.Name + " outlives its limit unseen"
				}
			}

			return ""
		}, gen.Int64()))

	checkProperty(t, "ended machines are replaced", prop.ForAll(
		func(seed int64) string {
			in := newInput(seed)
			in.Queued = 0

			for i := range in.Claims {
				in.Claims[i].Outdated = false // these are replaced a few at a time
			}

			// A machine on standby whose template is not ready is deleted by a later decision, and counts until then.
			current := in
			for round := range 3 {
				current = applyDecision(current, demand.Decide(current), round)
			}

			if len(current.Claims) < in.Min {
				return fmt.Sprintf("%d machines are left of a minimum of %d", len(current.Claims), in.Min)
			}

			return ""
		}, gen.Int64()))
}
