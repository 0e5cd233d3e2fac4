// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// ClaimState is a machine's state as far as scaling goes.
type ClaimState string

// States of a machine.
const (
	// ClaimPending: no machine is being made yet.
	ClaimPending ClaimState = "pending"
	// ClaimBooting: it is being made, or runs and its runner is not online yet.
	ClaimBooting ClaimState = "booting"
	// ClaimIdle: its runner is online and has no job.
	ClaimIdle ClaimState = "idle"
	// ClaimBusy: its runner has a job.
	ClaimBusy ClaimState = "busy"
	// ClaimFinishing: its job is over or it is being removed. It takes no job but still
	// takes room.
	ClaimFinishing ClaimState = "finishing"
)

// Claim is a machine of the pool.
type Claim struct {
	Name  string
	State ClaimState
	// CreatedAt is when the claim was made.
	CreatedAt time.Time
	// IdleSince is when its runner came online or lost its job; it counts for ClaimIdle
	// only. The zero time means: just now.
	IdleSince time.Time
}

// Input is what Desired decides upon.
type Input struct {
	// Min and Max bound the number of machines. Max wins.
	Min, Max int
	// Queued jobs wait for a runner of this pool.
	Queued int
	Claims []Claim
	Now    time.Time
	// ScaleDownDelay is how long an idle machine above what is wanted is kept.
	ScaleDownDelay time.Duration
	// IdleTimeout ends a machine that had no job for so long, even one that keeps Min
	// filled. Zero means never.
	IdleTimeout time.Duration
	// MaxLifetime ends a machine so long after its creation. Zero means never. A busy
	// machine is left to its claim.
	MaxLifetime time.Duration
	// Failures in a row, and when the last was.
	Failures    int
	LastFailure time.Time
}

// Reasons of a Decision.
const (
	ReasonSteady      = "AsDesired"
	ReasonScalingUp   = "ScalingUp"
	ReasonScalingDown = "ScalingDown"
	ReasonAtMaximum   = "AtMaximum"
	ReasonBackingOff  = "BackingOff"
	ReasonReplacing   = "Replacing"
	ReasonIdleSurplus = "IdleSurplus"
	ReasonFinishing   = "WaitingForRoom"
)

// Reasons of a Deletion.
const (
	DeleteSurplus     = "ScaledDown"
	DeleteIdleTimeout = "IdleTimeout"
	DeleteMaxLifetime = "MaxLifetime"
)

// Deletion is a machine to remove. Its claim removes its runner first, which the platform
// refuses if it has got a job meanwhile.
type Deletion struct {
	Name, Reason, Message string
}

// Decision is what to do about a pool now.
type Decision struct {
	// Desired is the number of machines wanted.
	Desired int
	// Create so many machines.
	Create int
	// Delete these, in this order: oldest idle first.
	Delete []Deletion
	// After is when to look again if nothing happens before; zero means on events only.
	After time.Duration
	// Reason and Message say it in words, for the pool's condition.
	Reason, Message string
}

const (
	// backoffBase doubles with every failure in a row up to backoffCap.
	backoffBase = time.Second
	backoffCap  = 5 * time.Minute
	// probeAfter so many failures in a row only one machine is tried at a time.
	probeAfter = 3
)

// Backoff gives how long after the last of n failures in a row a new machine is tried.
func Backoff(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}

	wait := backoffBase
	for range failures - 1 {
		if wait *= 2; wait >= backoffCap {
			return backoffCap
		}
	}

	return wait
}

// Desired decides how many machines a pool gets and which it loses.
//
// Wanted are Min, or as many as jobs are queued and running if that is more, or Max if
// that is less. Every machine that will come to take a job (pending, booting or idle)
// stands for one queued job, so that nothing is made twice for one. Machines whose job is
// over take room until they are gone: Max is never exceeded. Machines that outlived
// MaxLifetime or IdleTimeout go and are replaced; of those left over, idle ones go, the
// longest idle first, once ScaleDownDelay has passed, but never one that a queued job may
// be about to take. Busy machines are never deleted.
func Desired(in Input) Decision {
	pass := newPass(in)
	out := Decision{Desired: pass.target, Delete: pass.expire()}

	// Machines that go now are no longer counted on, but take room till they are gone.
	pass.usable -= len(out.Delete)

	switch {
	case pass.usable > pass.target:
		out.Delete = append(out.Delete, pass.scaleDown(pass.usable-pass.target)...)
		pass.explainSurplus(&out)
	case pass.usable < pass.target:
		pass.scaleUp(&out)
	default:
		pass.explainSteady(&out)
	}

	out.After = pass.after()

	return out
}

// pass is one run of Desired.
type pass struct {
	in     Input
	target int
	// usable machines are those that run or may yet run a job; total includes finishing ones.
	usable, total int
	// starting machines are pending or booting.
	starting int
	// idle machines that are kept so far, longest idle first.
	idle []Claim
	next time.Time
}

func newPass(in Input) *pass {
	in.Queued, in.Min, in.Max = max(in.Queued, 0), max(in.Min, 0), max(in.Max, 0)
	p := &pass{in: in, total: len(in.Claims)}
	busy := 0

	for _, claim := range in.Claims {
		switch claim.State {
		case ClaimFinishing:
			continue
		case ClaimBusy:
			busy++
		case ClaimIdle:
			if claim.IdleSince.IsZero() {
				claim.IdleSince = in.Now
			}

			p.idle = append(p.idle, claim)
		case ClaimPending, ClaimBooting:
			p.starting++
		}

		p.usable++
	}

	slices.SortFunc(p.idle, func(a, b Claim) int {
		return cmp.Or(a.IdleSince.Compare(b.IdleSince), cmp.Compare(a.Name, b.Name))
	})

	p.target = min(max(in.Min, in.Queued+busy), in.Max)

	return p
}

// expire gives the machines that are too old or too long idle.
func (p *pass) expire() []Deletion {
	var gone []Deletion

	kept := p.idle[:0:0]

	for _, claim := range p.idle {
		switch {
		case p.due(claim.CreatedAt, p.in.MaxLifetime):
			gone = append(gone, tooOld(claim, p.in.MaxLifetime))
		case p.due(claim.IdleSince, p.in.IdleTimeout):
			gone = append(gone, Deletion{claim.Name, DeleteIdleTimeout, fmt.Sprintf(
				"its runner had no job for the pool's lifecycle.idleTimeout of %s", p.in.IdleTimeout)})
		default:
			kept = append(kept, claim)
		}
	}

	p.idle = kept

	for _, claim := range p.in.Claims {
		starting := claim.State == ClaimPending || claim.State == ClaimBooting
		if starting && p.due(claim.CreatedAt, p.in.MaxLifetime) {
			gone = append(gone, tooOld(claim, p.in.MaxLifetime))
			p.starting--
		}
	}

	return gone
}

func tooOld(claim Claim, limit time.Duration) Deletion {
	return Deletion{claim.Name, DeleteMaxLifetime, fmt.Sprintf("it outlived the pool's lifecycle.maxLifetime of %s", limit)}
}

// scaleDown gives up to so many idle machines that nobody needs any more.
func (p *pass) scaleDown(surplus int) []Deletion {
	var gone []Deletion

	for _, claim := range p.idle[:min(surplus, max(len(p.idle)-p.in.Queued, 0))] {
		if !p.in.Now.Before(claim.IdleSince.Add(p.in.ScaleDownDelay)) {
			gone = append(gone, Deletion{claim.Name, DeleteSurplus, fmt.Sprintf(
				"%d machines are wanted, and its runner had no job for the pool's scaling.scaleDownDelay of %s",
				p.target, p.in.ScaleDownDelay)})

			continue
		}

		p.wake(claim.IdleSince.Add(p.in.ScaleDownDelay))
	}

	return gone
}

func (p *pass) explainSurplus(out *Decision) {
	out.Reason = ReasonIdleSurplus
	out.Message = fmt.Sprintf("%d machines are wanted and %d are there: idle ones are kept for scaling.scaleDownDelay of %s, "+
		"busy ones until they are done", p.target, p.usable, p.in.ScaleDownDelay)

	if len(out.Delete) > 0 {
		out.Reason = ReasonScalingDown
		out.Message = fmt.Sprintf("%d idle machines are removed, %d are wanted", len(out.Delete), p.target)
	}
}

func (p *pass) scaleUp(out *Decision) {
	out.Reason = ReasonScalingUp
	need := p.target - p.usable
	retry := p.in.LastFailure.Add(Backoff(p.in.Failures))

	if p.in.Failures > 0 && p.in.Now.Before(retry) {
		p.wake(retry)
		out.Reason = ReasonBackingOff
		out.Message = fmt.Sprintf("%d machines failed in a row: the next of %d wanted is tried at %s; "+
			"see the events of the pool's MachineClaims", p.in.Failures, need, retry.UTC().Format(time.RFC3339))

		return
	}

	if p.in.Failures >= probeAfter {
		need = max(min(need, 1-p.starting), 0)
		out.Reason = ReasonBackingOff
		out.Message = fmt.Sprintf("%d machines failed in a row: one at a time is tried; "+
			"see the events of the pool's MachineClaims", p.in.Failures)
		out.Create = min(need, max(p.in.Max-p.total, 0))

		return
	}

	out.Create = min(need, max(p.in.Max-p.total, 0))

	switch {
	case out.Create == 0:
		out.Reason = ReasonFinishing
		out.Message = fmt.Sprintf("%d more machines are wanted as soon as finished ones are gone: scaling.maxReplicas is %d",
			need, p.in.Max)
	case len(out.Delete) > 0:
		out.Reason = ReasonReplacing
		out.Message = fmt.Sprintf("%d machines are at the end of their life, %d are made", len(out.Delete), out.Create)
	default:
		out.Message = fmt.Sprintf("%d machines are made: %d jobs are queued, %d machines are wanted", out.Create, p.in.Queued, p.target)
	}
}

func (p *pass) explainSteady(out *Decision) {
	out.Reason = ReasonSteady
	out.Message = fmt.Sprintf("%d machines are wanted and there", p.target)

	if len(out.Delete) > 0 {
		out.Reason = ReasonReplacing
		out.Message = fmt.Sprintf("%d machines are at the end of their life, and %d others are wanted and there",
			len(out.Delete), p.target)
	}

	if short := p.in.Queued - p.starting - len(p.idle); short > 0 {
		out.Reason = ReasonAtMaximum
		out.Message = fmt.Sprintf("%d queued jobs wait for others to end: the pool has scaling.maxReplicas of %d machines",
			short, p.in.Max)
	}
}

// after gives when time alone changes the decision.
func (p *pass) after() time.Duration {
	for _, claim := range p.in.Claims {
		if claim.State != ClaimBusy && claim.State != ClaimFinishing {
			p.expires(claim.CreatedAt, p.in.MaxLifetime)
		}
	}

	for _, claim := range p.idle {
		p.expires(claim.IdleSince, p.in.IdleTimeout)
	}

	if p.next.IsZero() {
		return 0
	}

	return p.next.Sub(p.in.Now)
}

func (p *pass) due(since time.Time, limit time.Duration) bool {
	return limit > 0 && !p.in.Now.Before(since.Add(limit))
}

func (p *pass) expires(since time.Time, limit time.Duration) {
	if limit > 0 {
		p.wake(since.Add(limit))
	}
}

// wake notes a moment to look again, unless it is over.
func (p *pass) wake(at time.Time) {
	if at.After(p.in.Now) && (p.next.IsZero() || at.Before(p.next)) {
		p.next = at
	}
}
