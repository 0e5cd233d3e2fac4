// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// sizedInput is input with jobs and machines of several sizes.
func sizedInput(seed int64) demand.Input {
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	sizes := []string{"", "cpu=8", "cpu=4,memory=16Gi", "image=a"}
	in := input(seed)

	for range in.Queued {
		in.Sizes = append(in.Sizes, sizes[rng.IntN(len(sizes))])
	}

	for i := range in.Claims {
		if in.Claims[i].State != demand.ClaimStandby { // which are of the pool's own size
			in.Claims[i].Size = sizes[rng.IntN(len(sizes))]
		}
	}

	return in
}

// made is how many machines of each size a decision makes, without those on standby.
func made(out demand.Decision) map[string]int {
	all := maps.Clone(out.Sized)
	if all == nil {
		all = map[string]int{}
	}

	all[""] = out.Create

	return all
}

// applySized is apply for machines of several sizes, and lets those that were made come up.
func applySized(in demand.Input, out demand.Decision, round int) demand.Input {
	next := settle(apply(in, out, round))

	for size, n := range out.Sized {
		for i := range n {
			next.Claims = append(next.Claims, demand.Claim{
				Name: fmt.Sprintf("new-%d-%s-%d", round, size, i), State: demand.ClaimPending, CreatedAt: in.Now, Size: size,
			})
		}
	}

	for i, claim := range next.Claims {
		if claim.State == demand.ClaimPending || claim.State == demand.ClaimBooting {
			next.Claims[i].State, next.Claims[i].IdleSince = demand.ClaimIdle, in.Now
		}
	}

	return next
}

// coming counts the machines of a size that will take a job, without those that go.
func coming(in demand.Input, out demand.Decision, size string) int {
	return countOf(in, func(claim demand.Claim) bool {
		waits := claim.State == demand.ClaimPending || claim.State == demand.ClaimBooting || claim.State == demand.ClaimIdle

		return claim.Size == size && waits && !gone(out, claim.Name)
	})
}

// Feature: hyperfleet-operator, Property 9: RunnerPool Scaling Behavior.
func TestPropertyScalingOfSizes(t *testing.T) {
	t.Parallel()

	check(t, "jobs that all ask for the pool's own size are as jobs without sizes", prop.ForAll(
		func(seed int64) string {
			in := input(seed)
			plain := demand.Desired(in)
			in.Sizes = make([]string, in.Queued)

			return cmp.Diff(plain, demand.Desired(in))
		}, gen.Int64()))

	check(t, "one pass keeps the maximum, makes no machine twice for a job, and removes none that is needed", prop.ForAll(
		func(seed int64) string {
			in := sizedInput(seed)
			out := demand.Desired(in)
			created, queued := out.CreateStandby, map[string]int{}

			for _, size := range in.Sizes {
				queued[size]++
			}

			for size, n := range made(out) {
				created += n

				if size != "" && n > max(queued[size]-coming(in, out, size), 0) {
					return fmt.Sprintf("%d machines of size %s are made for %d jobs", n, size, queued[size])
				}
			}

			if out.Reason == demand.ReasonScalingUp && created+len(out.Activate) == 0 {
				return "it says that machines are made: " + out.Message
			}

			if created > 0 && len(in.Claims)+created > in.Max {
				return fmt.Sprintf("%d machines are made beside %d, the maximum is %d", created, len(in.Claims), in.Max)
			}

			for _, gone := range out.Delete {
				i := slices.IndexFunc(in.Claims, func(c demand.Claim) bool { return c.Name == gone.Name })
				claim := in.Claims[i]

				switch surplus := gone.Reason == demand.DeleteSurplus; {
				case claim.State == demand.ClaimBusy, claim.State == demand.ClaimFinishing:
					return "deletes a busy or finishing machine"
				case surplus && claim.State == demand.ClaimIdle && coming(in, out, claim.Size) < min(queued[claim.Size], 1):
					return fmt.Sprintf("deletes the last machine of size %q, which a job waits for", claim.Size)
				case slices.Contains(out.Activate, gone.Name):
					return "starts and deletes a machine at once"
				}
			}

			return ""
		}, gen.Int64()))

	check(t, "repeated passes give as many jobs as there is room for machines of their sizes, and then rest", prop.ForAll(
		func(seed int64) string {
			in := sizedInput(seed)
			in.MaxLifetime, in.IdleTimeout = 0, 0

			for i := range in.Claims {
				in.Claims[i].Outdated, in.Claims[i].Bound = false, false
			}

			for round := range 60 {
				in = applySized(in, demand.Desired(in), round)
			}

			return wellServed(in)
		}, gen.Int64()))
}

// wellServed says what is missing of a pool that nothing changes any more.
func wellServed(in demand.Input) string {
	out := demand.Desired(in)
	if len(out.Delete) > 0 || out.Creates() || len(out.Activate) > 0 {
		return fmt.Sprintf("it does not rest: %+v", out)
	}

	queued, served := map[string]int{}, 0

	for _, size := range in.Sizes {
		queued[size]++
	}

	for size, n := range queued {
		served += min(n, coming(in, out, size))
	}

	if room := min(in.Max-count(in, demand.ClaimBusy), len(in.Sizes)); served < room {
		return fmt.Sprintf("%d jobs have a machine of their size, and there is room for %d of %q: %+v", served, room, in.Sizes, out)
	}

	return ""
}
