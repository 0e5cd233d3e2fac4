// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"slices"
)

// expire removes the machines from the plan that are too old or idle for too long, and returns their
// deletions.
func (p *plan) expire() []Deletion {
	var deletions []Deletion

	deleteIfOld := func(claim Claim) bool {
		if !p.isDue(claim.CreatedAt, p.in.MaxLifetime) {
			return false
		}

		deletions = append(deletions, Deletion{claim.Name, DeleteMaxLifetime,
			fmt.Sprintf("the machine is older than the pool's lifecycle.maxLifetime of %s", p.in.MaxLifetime)})

		return true
	}

	p.idle = slices.DeleteFunc(p.idle, func(claim Claim) bool {
		if deleteIfOld(claim) {
			return true
		}

		isIdleTooLong := p.isDue(claim.IdleSince, p.in.IdleTimeout)
		if isIdleTooLong {
			deletions = append(deletions, Deletion{claim.Name, DeleteIdleTimeout, fmt.Sprintf(
				"the runner had no job for the pool's lifecycle.idleTimeout of %s", p.in.IdleTimeout)})
		}

		return isIdleTooLong
	})
	p.starting = slices.DeleteFunc(p.starting, deleteIfOld)
	p.standby = slices.DeleteFunc(p.standby, deleteIfOld)

	return deletions
}

// newStuckDeletion returns the deletion of a machine that cannot be started now.
func newStuckDeletion(claim Claim) Deletion {
	message := ""

	switch claim.StuckReason {
	case DeleteNoCapacity:
		message = "its cluster or node has no free capacity; the pool creates a machine elsewhere"
	case DeleteNoAddress:
		message = "its template's address pool gives it no address; the pool creates a machine from another template"
	case DeleteNotReady:
		message = "its template or cluster is not ready; the pool uses another template"
	case DeleteUnreachable:
		message = "its node does not respond; the pool creates a machine elsewhere"
	}

	return Deletion{claim.Name, claim.StuckReason, message}
}

// deleteStuck removes the machines from the plan that cannot start now (Claim.StuckReason), so that the pool creates machines
// elsewhere, and returns their deletions. It keeps prepared machines on standby, because they can be started later.
func (p *plan) deleteStuck() []Deletion {
	var deletions []Deletion

	deleteIfStuck := func(claim Claim) bool {
		isPreparedStandby := claim.State == ClaimStandby && claim.Prepared
		if claim.StuckReason == "" || claim.State == ClaimIdle || isPreparedStandby {
			return false
		}

		deletions = append(deletions, newStuckDeletion(claim))

		return true
	}

	p.starting = slices.DeleteFunc(p.starting, deleteIfStuck)
	p.standby = slices.DeleteFunc(p.standby, deleteIfStuck)

	return deletions
}

// replaceShare limits how many machines are replaced at the same time: one of replaceShare, a quarter.
const replaceShare = 4

// replace selects the outdated machines to delete now, removes them from the plan and returns their deletions.
//
// Outdated machines that are being deleted and new machines that are not ready yet count against the
// limit, so that the replacement stops if new machines do not become ready. An idle machine that a queued
// job may be about to take is kept. All idle machines are kept while new machines fail.
func (p *plan) replace() []Deletion {
	countUnprepared := func(claims []Claim) int {
		n := 0

		for _, claim := range claims {
			if !claim.Outdated && !claim.Prepared {
				n++
			}
		}

		return n
	}

	remaining := max(1, (p.countUsable()+len(p.standby))/replaceShare) -
		p.finishingOutdated - countUnprepared(p.standby) - max(countUnprepared(p.starting)-p.in.Queued, 0)

	var deletions []Deletion

	deleteOutdated := func(claims []Claim, limit int) []Claim {
		return slices.DeleteFunc(claims, func(claim Claim) bool {
			if !claim.Outdated || claim.Bound || remaining <= 0 || limit <= 0 {
				return false
			}

			deletions = append(deletions, Deletion{
				claim.Name, DeleteOutdated, "the pool's template or workload changed after the machine was created",
			})
			remaining--
			limit--

			return true
		})
	}

	idleLimit := len(p.idle) - p.in.Queued
	if p.in.Failures >= probeAfter {
		idleLimit = 0
	}

	p.standby = deleteOutdated(p.standby, len(p.standby))
	p.starting = deleteOutdated(p.starting, len(p.starting))
	p.idle = deleteOutdated(p.idle, idleLimit)

	return deletions
}

// scaleDown removes up to surplus idle machines from the plan, after ScaleDownDelay, and returns their
// deletions.
func (p *plan) scaleDown(surplus int) []Deletion {
	var deletions []Deletion

	limit := min(surplus, max(len(p.idle)-p.in.Queued, 0))

	for _, claim := range p.idle[:limit] {
		if !p.in.Now.Before(claim.IdleSince.Add(p.in.ScaleDownDelay)) {
			deletions = append(deletions, Deletion{claim.Name, DeleteSurplus, fmt.Sprintf(
				"the pool needs %s, and the runner had no job for the pool's scaling.scaleDownDelay of %s",
				formatMachines(p.target), p.in.ScaleDownDelay)})

			continue
		}

		p.scheduleAt(claim.IdleSince.Add(p.in.ScaleDownDelay))
	}

	// The machines are ordered by idle time, so the deleted machines are the first ones.
	p.idle = p.idle[len(deletions):]

	return deletions
}

func (p *plan) explainSurplus(out *Decision) {
	out.Reason = ReasonIdleSurplus
	out.Message = fmt.Sprintf("the pool needs %s and has %d: idle machines are kept for scaling.scaleDownDelay of %s, "+
		"busy machines until their jobs end", formatMachines(p.target), p.countUsable(), p.in.ScaleDownDelay)

	if len(out.Delete) > 0 {
		out.Reason = ReasonScalingDown
		out.Message = fmt.Sprintf("deleting %s: the pool needs %d", formatMachines(len(out.Delete)), p.target)
	}
}
