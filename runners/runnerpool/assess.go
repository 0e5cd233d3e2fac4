// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"context"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// assessClaims counts the machines of each source. It also marks a claim as outdated if its source has changed, as
// unreachable if its node does not respond, and as stuck if its machine waits for something that another source or
// node may have. notCached is the number of new claims of each source that are not in the cache yet.
func (s *scope) assessClaims(ctx context.Context, current *view, notCached map[string]int) error {
	unreachable, err := s.findUnreachable(ctx, current.claims)
	if err != nil {
		return err
	}

	full, wasFull := s.fullClusters.listFull(s.Clock.Now())

	for i := range s.sources {
		src := &s.sources[i]
		src.isFull, src.wasFull = full[src.name] > 0, wasFull[src.name]
		src.machines, src.unplaced = notCached[src.name], notCached[src.name]
	}

	for i := range current.claims {
		s.countMachine(&current.claims[i], current.states[i].State)
	}

	for i := range current.claims {
		claim, state := &current.claims[i], &current.states[i]
		state.Unreachable = unreachable[findNode(claim)]

		own := s.findSource(claim)
		if own == nil {
			state.Outdated = true // the pool no longer uses the template

			continue
		}

		state.Outdated = own.isOutdated(claim)

		// No other source has an image that a job has requested.
		var other *source
		if !own.needsRequest && !demand.HasImage(claim.Spec.Size, s.pool.Spec.SizeLabels) {
			if other = s.findSourceWithCapacity(claim); other == nil && isWaiting(claim) {
				s.recheckFull(claim, full)
			}
		}

		state.StuckReason = s.findStuckReason(claim, own, other)
		if state.StuckReason != "" && claim.Status.VMRef == nil && other != nil {
			other.unplaced++
		}

		if state.Unreachable && own.isUsable() && !isStarted(claim) && !s.mayRunTwice(claim) {
			state.StuckReason = demand.DeleteUnreachable // another node of the cluster responds
		}
	}

	return nil
}

// countMachine counts the machine of a claim for its source. If the claim is being deleted and has no machine
// yet, it counts as unplaced for all sources, because any of them may get the claim that replaces it.
func (s *scope) countMachine(claim *v1alpha1.MachineClaim, state demand.ClaimState) {
	own, isDeleted := s.findSource(claim), !claim.DeletionTimestamp.IsZero()

	if own != nil && state != demand.ClaimFinishing {
		own.machines++
	}

	// Failed claims and those that wait for the machine of an earlier claim may exist for hours.
	isDecided := claim.Status.VMRef != nil || isWaitingForNamesake(claim) || state == demand.ClaimFinishing && !isDeleted

	for i := range s.sources {
		if src := &s.sources[i]; !isDecided && (isDeleted || src == own) {
			src.unplaced++
		}
	}
}

// findSource returns the source of a claim, or nil if the pool no longer uses it.
func (s *scope) findSource(claim *v1alpha1.MachineClaim) *source {
	index := slices.IndexFunc(s.sources, func(src source) bool { return src.name == claim.Spec.TemplateRef.Name })
	if index < 0 {
		return nil
	}

	return &s.sources[index]
}

// findSourceWithCapacity returns a source whose cluster may have capacity for a machine of the claim's size, or
// nil if there is none. It prefers sources on which no other claim is waiting to try its machine.
func (s *scope) findSourceWithCapacity(claim *v1alpha1.MachineClaim) *source {
	var out *source

	for i := range s.sources {
		src := &s.sources[i]
		if !src.isFull && src.mayReplace(claim) && (out == nil || out.isBeingTried() && !src.isBeingTried()) {
			out = src
		}
	}

	return out
}

// mayReplace reports whether the pool can create a machine of the claim's size from the source, if its cluster has capacity.
func (s *source) mayReplace(claim *v1alpha1.MachineClaim) bool {
	return s.isUsable() && !s.needsRequest && s.canHold(claim.Spec.Size)
}

// isWaiting reports whether a claim has no machine because its source has no capacity or no address for it.
func isWaiting(claim *v1alpha1.MachineClaim) bool {
	return isWaitingForCapacity(claim) || isWaitingForAddress(claim)
}

// recheckFull requeues the pool at the time when a waiting claim may try another source, because no event
// triggers a reconcile then. full is how much longer each source counts as full.
func (s *scope) recheckFull(claim *v1alpha1.MachineClaim, full map[string]time.Duration) {
	for i := range s.sources {
		src := &s.sources[i]
		if src.name != claim.Spec.TemplateRef.Name && src.mayReplace(claim) {
			s.recheckIn = step.ChooseSooner(s.recheckIn, full[src.name])
		}
	}
}

// findStuckReason returns the reason why a claim is replaced by another claim whose machine may start sooner,
// or "" if the claim is kept. other is the source for the other claim, or nil.
func (s *scope) findStuckReason(claim *v1alpha1.MachineClaim, own, other *source) string {
	switch {
	case isWaitingForNamesake(claim): // it may run a job for hours
		return demand.StuckNamesake
	case isActivatedWithoutCapacity(claim): // it can start only on its node, and a new machine may fit on another one
		return demand.DeleteNoCapacity
	case other == nil:
		return ""
	case other.isBeingTried() && isWaiting(claim):
		return "" // all claims would be created again whenever they try a source that is still full
	case isWaitingForAddress(claim):
		return demand.DeleteNoAddress
	case isWaitingForCapacity(claim):
		return demand.DeleteNoCapacity
	case own.isUsable() || isStarted(claim) || s.mayRunTwice(claim):
		return ""
	}

	if remaining := own.unusableSince.Add(notReadyPeriod).Sub(s.Clock.Now()); remaining > 0 {
		s.recheckIn = step.ChooseSooner(s.recheckIn, remaining)

		return ""
	}

	return demand.DeleteNotReady
}

// mayRunTwice reports whether the job of a claim could run a second time if another machine got it. The hypervisor was
// requested to start the claim's machine and may have done so, and the CI platform gives a job to any machine that has it.
func (s *scope) mayRunTwice(claim *v1alpha1.MachineClaim) bool {
	info, times := claim.Status.BootstrapInfo, claim.Status.Times
	if info == nil || info.BoundJob == "" || times == nil || times.CloneStarted == nil {
		return false
	}

	platform, ok := s.Platforms[claim.Spec.WorkloadConfig.Type]

	return !ok || platform.Traits().NeedsMachineForJobEnd
}
