// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"
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
	// ClaimStandby: it is made, or being made, and not to be started until it is activated.
	// It takes no job, but takes room.
	ClaimStandby ClaimState = "standby"
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
	// Prepared says of a machine on standby that it is made.
	Prepared bool
	// Outdated says that the machine was made, or would be, from what the pool no longer
	// asks for.
	Outdated bool
	// Bound says that the runner was made for one job, which it takes or has taken.
	Bound bool
	// Size is the Key of the Size that the machine was made for; empty means the pool's own.
	Size string
	// Stuck says of a machine that was not started yet that there is no room for it where
	// it is to be, and that there may be some elsewhere.
	Stuck bool
}

// Input is what Desired decides upon.
type Input struct {
	// Min and Max bound the number of machines. Max wins.
	Min, Max int
	// Queued jobs wait for a runner of this pool.
	Queued int
	// Sizes are the Keys of the queued jobs' sizes, in the order in which their machines
	// should be made. Nil means that all ask for the pool's own size.
	Sizes []string
	// WarmIdle machines are wanted beyond those that jobs ask for, see WarmIdle.
	WarmIdle int
	// WarmStopped machines are wanted on standby.
	WarmStopped int
	// Paused keeps everything as it is.
	Paused bool
	Claims []Claim
	Now    time.Time
	// Boundary is when Min or WarmIdle change by time alone. Zero means never.
	Boundary time.Time
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

	// whole is the pool's Max, where Max is the share of one size.
	whole int
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
	ReasonPaused      = "Paused"
)

// Reasons of a Deletion.
const (
	DeleteSurplus     = "ScaledDown"
	DeleteIdleTimeout = "IdleTimeout"
	DeleteMaxLifetime = "MaxLifetime"
	DeleteOutdated    = "TemplateChanged"
	DeleteStuck       = "NoRoom"
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
	// Activate these machines that are on standby, oldest first, before any is made.
	Activate []string
	// Create so many machines, and CreateStandby more that stay on standby.
	Create, CreateStandby int
	// Sized are so many more to create of other sizes than the pool's own, by their Keys.
	Sized map[string]int
	// Delete these, in this order: oldest idle first.
	Delete []Deletion
	// After is when to look again if nothing happens before; zero means on events only.
	After time.Duration
	// Reason and Message say it in words, for the pool's condition.
	Reason, Message string
}

// Creates tells whether machines are to be made.
func (d *Decision) Creates() bool { return d.Create+d.CreateStandby+len(d.Sized) > 0 }

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

// decide is Desired for machines of one size.
//
// Wanted are Min, or as many as jobs are queued and running and WarmIdle more if that is
// more, or Max if that is less. Every machine that will come to take a job (pending,
// booting or idle) stands for one queued job, so that nothing is made twice for one.
// Machines on standby are started before any is made, and made anew while there is room.
// Machines whose job is over take room until they are gone: Max is never exceeded.
// Machines that outlived MaxLifetime or IdleTimeout go and are replaced, outdated ones a
// few at a time; of those left over, idle ones go, the longest idle first, once
// ScaleDownDelay has passed, but never one that a queued job may be about to take. Busy
// machines are never deleted.
func decide(in Input) Decision {
	pass := newPass(in)
	out := Decision{Desired: pass.target}

	if in.Paused {
		out.Reason = ReasonPaused
		out.Message = fmt.Sprintf("spec.paused is set: no machine is made and none is removed; %d would be wanted, %d are there",
			pass.target, pass.usable())

		return out
	}

	// Machines that go now are no longer counted on, but take room till they are gone.
	out.Delete = append(out.Delete, pass.expire()...)
	out.Delete = append(out.Delete, pass.unstick()...)
	out.Delete = append(out.Delete, pass.replace()...)

	switch usable := pass.usable(); {
	case usable > pass.target:
		out.Delete = append(out.Delete, pass.scaleDown(usable-pass.target)...)
		pass.explainSurplus(&out)
	case usable < pass.target:
		pass.scaleUp(&out)
	default:
		pass.explainSteady(&out)
	}

	pass.stock(&out)

	out.After = pass.after()

	return out
}

// pass is one run of decide.
type pass struct {
	in     Input
	target int
	// busy, finishing and outgoing count machines; outgoing are outdated ones that go.
	busy, finishing, outgoing int
	// starting, idle and standby are the machines that are kept so far: idle ones the
	// longest idle first, those on standby oldest first. A runner that was made for a job
	// is on its way to it, even while it looks idle.
	starting, idle, standby []Claim
	next                    time.Time
}

func newPass(in Input) *pass {
	in.Queued, in.Min, in.Max = max(in.Queued, 0), max(in.Min, 0), max(in.Max, 0)
	in.WarmIdle, in.WarmStopped = max(in.WarmIdle, 0), max(in.WarmStopped, 0)
	p := &pass{in: in}

	for _, claim := range in.Claims {
		p.sort(claim)
	}

	slices.SortFunc(p.idle, func(a, b Claim) int {
		return cmp.Or(a.IdleSince.Compare(b.IdleSince), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(p.standby, func(a, b Claim) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name))
	})

	p.target = min(max(in.Min, in.Queued+p.busy+in.WarmIdle), in.Max)

	return p
}

func (p *pass) sort(claim Claim) {
	switch claim.State {
	case ClaimFinishing:
		p.finishing++

		if claim.Outdated {
			p.outgoing++
		}
	case ClaimBusy:
		p.busy++
	case ClaimStandby:
		p.standby = append(p.standby, claim)
	case ClaimIdle:
		if claim.IdleSince.IsZero() {
			claim.IdleSince = p.in.Now
		}

		if claim.Bound {
			p.starting = append(p.starting, claim)
		} else {
			p.idle = append(p.idle, claim)
		}
	case ClaimPending, ClaimBooting:
		p.starting = append(p.starting, claim)
	}
}

// usable machines are those that run or may yet run a job without being activated.
func (p *pass) usable() int { return p.busy + len(p.starting) + len(p.idle) }

// room is how many more machines there may be, whatever becomes of those there are.
func (p *pass) room() int { return max(p.in.Max-len(p.in.Claims), 0) }

// expire gives the machines that are too old or too long idle.
func (p *pass) expire() []Deletion {
	var gone []Deletion

	old := func(claim Claim) bool {
		if !p.due(claim.CreatedAt, p.in.MaxLifetime) {
			return false
		}

		gone = append(gone, Deletion{claim.Name, DeleteMaxLifetime,
			fmt.Sprintf("it outlived the pool's lifecycle.maxLifetime of %s", p.in.MaxLifetime)})

		return true
	}

	p.idle = slices.DeleteFunc(p.idle, func(claim Claim) bool {
		if old(claim) {
			return true
		}

		stale := p.due(claim.IdleSince, p.in.IdleTimeout)
		if stale {
			gone = append(gone, Deletion{claim.Name, DeleteIdleTimeout, fmt.Sprintf(
				"its runner had no job for the pool's lifecycle.idleTimeout of %s", p.in.IdleTimeout)})
		}

		return stale
	})
	p.starting = slices.DeleteFunc(p.starting, old)
	p.standby = slices.DeleteFunc(p.standby, old)

	return gone
}

// unstick gives the machines that wait for room while there may be some elsewhere.
func (p *pass) unstick() []Deletion {
	var gone []Deletion

	p.starting = slices.DeleteFunc(p.starting, func(claim Claim) bool {
		stuck := claim.Stuck && !claim.Bound
		if stuck {
			gone = append(gone, Deletion{
				claim.Name, DeleteStuck, "there is no room where it is to be, a machine is made elsewhere",
			})
		}

		return stuck
	})

	return gone
}

// replaceShare of the machines are replaced at a time: a quarter.
const replaceShare = 4

// replace gives the outdated machines that go now. What has gone or is on its way because
// of earlier ones counts, so that machines that don't come up stop the replacing. An idle
// machine that a queued job may be about to take stays, and so do all idle ones while new
// machines fail.
func (p *pass) replace() []Deletion {
	pending := func(claims []Claim) int {
		n := 0

		for _, claim := range claims {
			if !claim.Outdated && !claim.Prepared {
				n++
			}
		}

		return n
	}

	left := max(1, (p.usable()+len(p.standby))/replaceShare) -
		p.outgoing - pending(p.standby) - max(pending(p.starting)-p.in.Queued, 0)

	var gone []Deletion

	take := func(claims []Claim, most int) []Claim {
		return slices.DeleteFunc(claims, func(claim Claim) bool {
			if !claim.Outdated || claim.Bound || left <= 0 || most <= 0 {
				return false
			}

			gone = append(gone, Deletion{
				claim.Name, DeleteOutdated, "the pool's template or workload has changed since it was made",
			})
			left--
			most--

			return true
		})
	}

	idle := len(p.idle) - p.in.Queued
	if p.in.Failures >= probeAfter {
		idle = 0
	}

	p.standby = take(p.standby, len(p.standby))
	p.starting = take(p.starting, len(p.starting))
	p.idle = take(p.idle, idle)

	return gone
}

// scaleDown gives up to so many idle machines that nobody needs any more.
func (p *pass) scaleDown(surplus int) []Deletion {
	var gone []Deletion

	most := min(surplus, max(len(p.idle)-p.in.Queued, 0))

	for _, claim := range p.idle[:most] {
		if !p.in.Now.Before(claim.IdleSince.Add(p.in.ScaleDownDelay)) {
			gone = append(gone, Deletion{claim.Name, DeleteSurplus, fmt.Sprintf(
				"%s wanted, and its runner had no job for the pool's scaling.scaleDownDelay of %s",
				machines(p.target), p.in.ScaleDownDelay)})

			continue
		}

		p.wake(claim.IdleSince.Add(p.in.ScaleDownDelay))
	}

	// The longest idle come first, so that those that go are the first ones.
	p.idle = p.idle[len(gone):]

	return gone
}

func (p *pass) explainSurplus(out *Decision) {
	out.Reason = ReasonIdleSurplus
	out.Message = fmt.Sprintf("%s wanted, %d there: idle ones are kept for scaling.scaleDownDelay of %s, "+
		"busy ones until they are done", machines(p.target), p.usable(), p.in.ScaleDownDelay)

	if len(out.Delete) > 0 {
		out.Reason = ReasonScalingDown
		out.Message = fmt.Sprintf("removing %s: %d wanted", machines(len(out.Delete)), p.target)
	}
}

func (p *pass) scaleUp(out *Decision) {
	out.Reason = ReasonScalingUp
	need := p.target - p.usable()
	retry := p.in.LastFailure.Add(Backoff(p.in.Failures))

	if p.backingOff() {
		p.wake(retry)
		out.Reason = ReasonBackingOff
		out.Message = fmt.Sprintf("%s failed in a row: the next of %d wanted is tried at %s; "+
			"see the events of the pool's MachineClaims", machines(p.in.Failures), need, retry.UTC().Format(time.RFC3339))

		return
	}

	if p.in.Failures >= probeAfter {
		need = max(min(need, 1-len(p.starting)), 0)
		out.Reason = ReasonBackingOff
		out.Message = fmt.Sprintf("%s failed in a row: one at a time is tried; "+
			"see the events of the pool's MachineClaims", machines(p.in.Failures))
		p.fill(out, need)

		return
	}

	p.fill(out, need)

	switch {
	case out.Create+len(out.Activate) == 0:
		out.Reason = ReasonFinishing
		out.Message = fmt.Sprintf("%s more wanted as soon as finished ones are gone: scaling.maxReplicas is %d",
			machines(need), p.most())
	case len(out.Delete) > 0:
		out.Reason = ReasonReplacing
		out.Message = fmt.Sprintf("replacing %s at the end of life: making %d, starting %d",
			machines(len(out.Delete)), out.Create, len(out.Activate))
	case len(out.Activate) > 0:
		out.Message = fmt.Sprintf("starting %s from standby, making %d: %s queued, %s wanted",
			machines(len(out.Activate)), out.Create, jobs(p.in.Queued), machines(p.target))
	default:
		out.Message = fmt.Sprintf("making %s: %s queued, %s wanted",
			machines(out.Create), jobs(p.in.Queued), machines(p.target))
	}
}

// backingOff says whether the pause after a failure is not over.
func (p *pass) backingOff() bool {
	return p.in.Failures > 0 && p.in.Now.Before(p.in.LastFailure.Add(Backoff(p.in.Failures)))
}

// fill gets so many machines: those on standby first, then new ones as far as there is
// room. Outdated ones are not started: they are replaced.
func (p *pass) fill(out *Decision, need int) {
	p.standby = slices.DeleteFunc(p.standby, func(claim Claim) bool {
		if need <= 0 || claim.Outdated {
			return false
		}

		out.Activate = append(out.Activate, claim.Name)
		p.starting = append(p.starting, claim)
		need--

		return true
	})

	out.Create = min(need, p.room())
}

// stock keeps as many machines on standby as are wanted and as there is room for beside
// those that run. What is too many goes, the youngest first: it costs nothing but disk.
func (p *pass) stock(out *Decision) {
	wanted := min(p.in.WarmStopped, max(p.in.Max-p.usable()-out.Create, 0))

	if surplus := len(p.standby) - wanted; surplus > 0 {
		for _, claim := range p.standby[wanted:] {
			out.Delete = append(out.Delete, Deletion{
				claim.Name, DeleteSurplus, machines(wanted) + " wanted on standby",
			})
		}

		return
	}

	// What is on standby is a stock for later: it waits while machines fail.
	if p.in.Failures >= probeAfter || p.backingOff() {
		return
	}

	// Machines that are wanted and have no room yet come first.
	short := max(p.target-p.usable()-out.Create, 0)
	out.CreateStandby = max(min(wanted-len(p.standby), p.room()-out.Create-short), 0)

	if out.CreateStandby > 0 && out.Reason == ReasonSteady {
		out.Reason = ReasonScalingUp
		out.Message = fmt.Sprintf("%s; %d more are made for standby", out.Message, out.CreateStandby)
	}
}

func (p *pass) explainSteady(out *Decision) {
	out.Reason = ReasonSteady
	out.Message = machines(p.target) + " wanted and there"

	if len(out.Delete) > 0 {
		out.Reason = ReasonReplacing
		out.Message = fmt.Sprintf("removing %s at the end of life: %d others wanted and there",
			machines(len(out.Delete)), p.target)
	}

	if short := p.in.Queued - len(p.starting) - len(p.idle); short > 0 {
		out.Reason = ReasonAtMaximum
		out.Message = fmt.Sprintf("waiting for others to end: %s; scaling.maxReplicas is %d", jobs(short), p.most())
	}
}

// most is the pool's scaling.maxReplicas.
func (p *pass) most() int { return max(p.in.whole, p.in.Max) }

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

	p.wake(p.in.Boundary)

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

func machines(n int) string { return english.Plural(n, "machine", "") }

func jobs(n int) string { return english.Plural(n, "job", "") }
