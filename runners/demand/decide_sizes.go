// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

// listSizes returns the sizes, other than the pool's own, that jobs request or machines have.
// Requested sizes come first, in the order of the jobs.
func listSizes(in Input) []string {
	var out []string

	for _, size := range in.Sizes {
		if size != "" && !slices.Contains(out, size) {
			out = append(out, size)
		}
	}

	remaining := map[string]bool{}

	for _, claim := range in.Claims {
		if claim.Size != "" && !slices.Contains(out, claim.Size) {
			remaining[claim.Size] = true
		}
	}

	return append(out, slices.Sorted(maps.Keys(remaining))...)
}

// freeCapacityNow and afterDelay are the values of the parameter isUrgent.
const freeCapacityNow, afterDelay = true, false

// decideSizes decides for each size with its share of Max, and joins the decisions. If isUrgent is
// true, it deletes idle machines that no job needs without ScaleDownDelay. needsCapacity is true if a
// machine is needed for which there is no capacity.
func decideSizes(in Input, sizes []string, isUrgent bool) (decision Decision, needsCapacity bool) {
	shares, queued := splitMax(in)
	parts := map[string]Decision{}
	in.poolMax = in.Max

	for _, size := range append([]string{""}, sizes...) {
		part := in
		part.Max, part.Queued, part.Sizes = shares[size], queued[size], nil
		part.Claims = slices.DeleteFunc(slices.Clone(in.Claims), func(c Claim) bool { return c.Size != size })

		if size != "" {
			part.Min, part.WarmIdle, part.WarmStopped, part.Boundary = 0, 0, 0, time.Time{}
		}

		if isUrgent {
			part.ScaleDownDelay = 0
		}

		parts[size] = decideSize(part)
	}

	return joinDecisions(in, sizes, parts)
}

// splitMax splits Max among the sizes: each size gets a share for its busy machines, and then, in
// the order of the jobs, for its queued jobs. The pool's own size gets the rest. splitMax also
// returns the queued jobs by size.
func splitMax(in Input) (shares, queued map[string]int) {
	shares, queued = map[string]int{}, map[string]int{}
	remaining := max(in.Max, 0)

	take := func(size string) {
		if remaining > 0 {
			shares[size]++
			remaining--
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

	shares[""] += remaining

	return shares, queued
}

// joinDecisions joins the decisions of all sizes so that the pool never has more than Max machines.
// Machines for jobs come first, in the order of the jobs, then the machines that are kept ready. It
// also reports whether a machine is needed for which there is no capacity.
func joinDecisions(in Input, sizes []string, parts map[string]Decision) (joined Decision, needsCapacity bool) {
	own := parts[""]
	out := own
	out.Create, out.CreateStandby, out.CreateBySize = 0, 0, map[string]int{}
	free := max(in.Max-len(in.Claims), 0)

	create := func(size string) {
		part := parts[size]
		if part.Create == 0 || free == 0 {
			return
		}

		part.Create--
		free--
		parts[size] = part

		if size == "" {
			out.Create++
		} else {
			out.CreateBySize[size]++
		}
	}

	for _, size := range in.Sizes {
		create(size)
	}

	for range own.Create {
		create("")
	}

	out.CreateStandby = min(own.CreateStandby, free)
	needsCapacity = parts[""].Create > 0

	for _, size := range sizes {
		part := parts[size]
		out.Desired += part.Desired
		out.Delete = append(out.Delete, part.Delete...)
		needsCapacity = needsCapacity || part.Create > 0 || part.Reason == ReasonWaitingForDeletion
		out.RequeueAfter = step.ChooseSooner(out.RequeueAfter, part.RequeueAfter)

		if out.Reason == ReasonSteady && part.Reason != ReasonSteady {
			out.Reason, out.Message = part.Reason, "size "+size+": "+part.Message
		}
	}

	// The decision of one size does not know that other sizes use the capacity.
	if out.Reason == ReasonScalingUp && !out.ShouldCreate() && len(out.Activate) == 0 {
		out.Reason = ReasonAtMaximum
		out.Message = fmt.Sprintf("%s queued until other jobs end: scaling.maxReplicas is %d", formatJobs(len(in.Sizes)), in.Max)
	}

	return out, needsCapacity
}
