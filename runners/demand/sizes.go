// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Desired decides how many machines a pool gets and which it loses. A machine is of one size,
// and stands for jobs that ask for that size alone: each size is decided upon by itself, and
// Max is shared among them in the order of the jobs. Min and warm machines are of the pool's
// own size, and take what room jobs leave.
func Desired(in Input) Decision {
	sizes := sizesOf(in)
	if len(sizes) == 0 {
		return decide(in)
	}

	out, short := decideEach(in, sizes, false)
	if short {
		// Idle machines of other sizes make room now.
		out, _ = decideEach(in, sizes, true)
	}

	return out
}

// sizesOf are the sizes, besides the pool's own, that jobs ask for or machines have, in the
// order in which jobs ask for them.
func sizesOf(in Input) []string {
	var out []string

	for _, size := range in.Sizes {
		if size != "" && !slices.Contains(out, size) {
			out = append(out, size)
		}
	}

	left := map[string]bool{}

	for _, claim := range in.Claims {
		if claim.Size != "" && !slices.Contains(out, claim.Size) {
			left[claim.Size] = true
		}
	}

	return append(out, slices.Sorted(maps.Keys(left))...)
}

// decideEach decides upon each size, with its share of Max, and puts that together. Where it
// is urgent, idle machines that nobody asks for are not kept.
func decideEach(in Input, sizes []string, urgent bool) (Decision, bool) {
	shares, queued := share(in)
	parts := map[string]Decision{}
	in.whole = in.Max

	for _, size := range append([]string{""}, sizes...) {
		part := in
		part.Max, part.Queued, part.Sizes = shares[size], queued[size], nil
		part.Claims = slices.DeleteFunc(slices.Clone(in.Claims), func(c Claim) bool { return c.Size != size })

		if size != "" {
			part.Min, part.WarmIdle, part.WarmStopped, part.Boundary = 0, 0, 0, time.Time{}
		}

		if urgent {
			part.ScaleDownDelay = 0
		}

		parts[size] = decide(part)
	}

	return join(in, sizes, parts)
}

// share gives each size as many machines of Max as it has busy ones and, as far as Max goes,
// queued jobs. What is left is the pool's own size's.
func share(in Input) (shares, queued map[string]int) {
	shares, queued = map[string]int{}, map[string]int{}
	left := max(in.Max, 0)

	take := func(size string) {
		if left > 0 {
			shares[size]++
			left--
		}
	}

	for _, claim := range in.Claims {
		if claim.State == ClaimBusy {
			take(claim.Size)
		}
	}

	for _, size := range in.Sizes {
		queued[size]++
		take(size)
	}

	shares[""] += left

	return shares, queued
}

// join puts the decisions of all sizes together, so that there are never more than Max
// machines: first come those for jobs, in their order, and then those that are kept ready. It
// tells whether a machine is wanted that there is no room for.
func join(in Input, sizes []string, parts map[string]Decision) (Decision, bool) {
	own := parts[""]
	out := own
	out.Create, out.CreateStandby, out.Sized = 0, 0, map[string]int{}
	room := max(in.Max-len(in.Claims), 0)

	give := func(size string) {
		part := parts[size]
		if part.Create == 0 || room == 0 {
			return
		}

		part.Create--
		room--
		parts[size] = part

		if size == "" {
			out.Create++
		} else {
			out.Sized[size]++
		}
	}

	for _, size := range in.Sizes {
		give(size)
	}

	for range own.Create {
		give("")
	}

	out.CreateStandby = min(own.CreateStandby, room)
	short := parts[""].Create > 0

	for _, size := range sizes {
		part := parts[size]
		out.Desired += part.Desired
		out.Delete = append(out.Delete, part.Delete...)
		short = short || part.Create > 0 || part.Reason == ReasonFinishing

		if part.After > 0 && (out.After == 0 || part.After < out.After) {
			out.After = part.After
		}

		if out.Reason == ReasonSteady && part.Reason != ReasonSteady {
			out.Reason, out.Message = part.Reason, "of size "+size+": "+part.Message
		}
	}

	// A size by itself does not know that others have taken the room.
	if out.Reason == ReasonScalingUp && !out.Creates() && len(out.Activate) == 0 {
		out.Reason = ReasonAtMaximum
		out.Message = fmt.Sprintf("waiting for others to end: %s; scaling.maxReplicas is %d", jobs(len(in.Sizes)), in.Max)
	}

	return out, short
}
