// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// ClaimState is the state of a machine for the scaling decision.
type ClaimState string

// States of a machine.
const (
	// ClaimPending: the machine's VM is not being created yet.
	ClaimPending ClaimState = "pending"
	// ClaimBooting: the VM is being created, or it runs and its runner is not online yet.
	ClaimBooting ClaimState = "booting"
	// ClaimIdle: the runner is online and has no job.
	ClaimIdle ClaimState = "idle"
	// ClaimBusy: the runner has a job.
	ClaimBusy ClaimState = "busy"
	// ClaimStandby: the VM is created, or is being created, and is not started until the machine is
	// activated. The machine takes no job and counts against Max.
	ClaimStandby ClaimState = "standby"
	// ClaimFinishing: the job is completed or the machine is being deleted. The machine takes no job and
	// still counts against Max, unless it is unreachable.
	ClaimFinishing ClaimState = "finishing"
)

// Claim is a machine of the pool.
type Claim struct {
	Name  string
	State ClaimState
	// CreatedAt is when the claim was created.
	CreatedAt time.Time
	// IdleSince is when the runner came online or finished its last job. It is used for ClaimIdle only.
	// Zero means now.
	IdleSince time.Time
	// Prepared is true if the VM of a machine on standby is created.
	Prepared bool
	// Outdated is true if the machine was created from, or would be created from, a template or workload
	// that has changed.
	Outdated bool
	// Bound is true if the runner was created for one job, which it takes or has taken.
	Bound bool
	// Size is the Key of the Size that the machine was created for. Empty means the pool's own size.
	Size string
	// StuckReason is why the machine cannot be started now while another one may be: DeleteNoCapacity, DeleteNoAddress,
	// DeleteNotReady, DeleteUnreachable, StuckNamesake or "".
	StuckReason string
	// Unreachable is true if the machine's node or cluster has not responded for some time. Nobody knows when such a
	// machine can be deleted, so it does not count against Max if its State is ClaimFinishing.
	Unreachable bool
}

// rankStuck returns a number by which machines that cannot be started now are sorted behind all others.
func (c *Claim) rankStuck() int {
	if c.StuckReason != "" {
		return 1
	}

	return 0
}

// Input is the input of Decide.
type Input struct {
	// Min and Max limit the number of machines. If Min is above Max, Max applies.
	Min, Max int
	// Queued is how many jobs wait for a runner of this pool.
	Queued int
	// Sizes are the Keys of the queued jobs' sizes, in the order in which their machines should be
	// created. Nil means that all jobs request the pool's own size.
	Sizes []string
	// WarmIdle is how many idle machines the pool keeps in addition to the machines for jobs; see
	// CountWarmIdle.
	WarmIdle int
	// WarmStopped is how many machines the pool keeps on standby.
	WarmStopped int
	// Paused stops all changes.
	Paused bool
	Claims []Claim
	Now    time.Time
	// Boundary is when Min or WarmIdle change because of the time. Zero means never.
	Boundary time.Time
	// ScaleDownDelay is how long the pool keeps an idle machine that it does not need.
	ScaleDownDelay time.Duration
	// IdleTimeout is the idle time after which a machine is deleted, even if the pool then has fewer
	// machines than Min. Zero means never.
	IdleTimeout time.Duration
	// MaxLifetime is the age at which a machine is deleted. Zero means never. Decide does not delete a
	// busy machine; its own claim does that.
	MaxLifetime time.Duration
	// Failures is the number of failures in a row, and LastFailure is the time of the last one.
	Failures    int
	LastFailure time.Time

	// poolMax is the pool's Max if Max is the share of one size.
	poolMax int
}

// Reasons of a Decision.
const (
	ReasonSteady             = "AsDesired"
	ReasonScalingUp          = "ScalingUp"
	ReasonScalingDown        = "ScalingDown"
	ReasonAtMaximum          = "AtMaximum"
	ReasonBackingOff         = "BackingOff"
	ReasonReplacing          = "Replacing"
	ReasonIdleSurplus        = "IdleSurplus"
	ReasonWaitingForDeletion = "WaitingForDeletion"
	ReasonPaused             = "Paused"
)

// Reasons of a Deletion.
const (
	DeleteSurplus     = "ScaledDown"
	DeleteIdleTimeout = "IdleTimeout"
	DeleteMaxLifetime = "MaxLifetime"
	DeleteOutdated    = "TemplateChanged"
	DeleteNoCapacity  = "NoCapacity"
	DeleteNoAddress   = "NoAddress"
	DeleteNotReady    = "TemplateNotReady"
	DeleteUnreachable = "NodeUnreachable"
)

// StuckNamesake is the StuckReason of a machine that waits for the end of an earlier machine of its name.
const StuckNamesake = hypervisor.ReasonNamesake

// Deletion is a machine to delete. The machine's claim removes the runner first. The platform refuses the
// removal if the runner has taken a job in the meantime.
type Deletion struct {
	Name, Reason, Message string
}

// Decision holds the changes to make to a pool now.
type Decision struct {
	// Desired is how many machines the pool needs.
	Desired int
	// Activate names the machines on standby to start, oldest first, before new ones are created.
	Activate []string
	// Create is how many machines to create, and CreateStandby is how many more to create for standby.
	Create, CreateStandby int
	// CreateBySize is how many more machines to create of other sizes than the pool's own, by the Keys of
	// the sizes.
	CreateBySize map[string]int
	// Delete lists the machines to delete, in this order: the longest idle first.
	Delete []Deletion
	// RequeueAfter is the delay until the next decision if no event comes first. Zero means that only
	// events trigger the next decision.
	RequeueAfter time.Duration
	// Reason and Message describe the decision, for the pool's condition.
	Reason, Message string
}

// ShouldCreate reports whether machines are to be created.
func (d *Decision) ShouldCreate() bool { return d.Create+d.CreateStandby+len(d.CreateBySize) > 0 }

const (
	// backoffBase is the back-off after the first failure. It doubles with each further failure in a row,
	// up to backoffCap.
	backoffBase = time.Second
	backoffCap  = 5 * time.Minute
	// probeAfter is the number of failures in a row after which the pool creates one machine at a time.
	probeAfter = 3
)

// Backoff returns how long after the last of n failures in a row the pool creates the next machine.
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

// Decide returns which machines a pool creates, starts and deletes now.
//
// A machine has one size and counts only for jobs of that size. Decide decides for each size
// separately and splits Max among the sizes in the order of the jobs. Min and the warm machines are
// of the pool's own size, and use the capacity that the jobs leave free.
func Decide(in Input) Decision {
	in.Claims = slices.DeleteFunc(slices.Clone(in.Claims), func(c Claim) bool { return c.Unreachable && c.State == ClaimFinishing })

	sizes := listSizes(in)
	if len(sizes) == 0 {
		return decideSize(in)
	}

	out, needsCapacity := decideSizes(in, sizes, afterDelay)
	if needsCapacity {
		// Delete idle machines of other sizes without a delay, to free capacity for the jobs.
		out, _ = decideSizes(in, sizes, freeCapacityNow)
	}

	return out
}

// decideSize is Decide for machines of one size.
//
// The target is the number of queued and running jobs plus WarmIdle, but at least Min and at most Max.
// Each pending, booting or idle machine counts for one queued job, so that no job gets two machines.
//
// To reach the target, decideSize starts the machines on standby before it creates new ones, and refills
// the standby if Max allows it. Finished machines count against Max until they are deleted, so that Max is
// never exceeded.
//
// Machines older than MaxLifetime or idle for longer than IdleTimeout are deleted and replaced. Outdated
// machines are replaced a few at a time. Of the machines above the target, idle ones are deleted after
// ScaleDownDelay, the longest idle first, unless a queued job may be about to take the machine. Busy
// machines are never deleted.
func decideSize(in Input) Decision {
	plan := newPlan(in)
	out := Decision{Desired: plan.target}

	if in.Paused {
		out.Reason = ReasonPaused
		out.Message = fmt.Sprintf("spec.paused is set: the pool creates and deletes no machines; it needs %d and has %d",
			plan.target, plan.countUsable())

		return out
	}

	// Machines that are deleted now no longer count toward the target, but count against Max until they
	// are gone.
	out.Delete = append(out.Delete, plan.expire()...)
	out.Delete = append(out.Delete, plan.deleteStuck()...)
	out.Delete = append(out.Delete, plan.replace()...)

	switch usable := plan.countUsable(); {
	case usable > plan.target:
		out.Delete = append(out.Delete, plan.scaleDown(usable-plan.target)...)
		plan.explainSurplus(&out)
	case usable < plan.target:
		plan.scaleUp(&out)
	default:
		plan.explainSteady(&out)
	}

	plan.fillStandby(&out)

	out.RequeueAfter = plan.requeueAfter()

	return out
}

// plan is the state of one call of decideSize.
type plan struct {
	in     Input
	target int
	// busy, finishing and finishingOutdated count machines. finishingOutdated is the part of finishing
	// that is outdated.
	busy, finishing, finishingOutdated int
	// starting, idle and standby are the machines to keep so far. The machines in idle are ordered by the
	// longest idle time, and the machines in standby by age, with those that cannot be started now at the end.
	// A machine whose runner was created for one job is in starting even if the runner is idle, because it is
	// about to take the job.
	starting, idle, standby []Claim
	nextTime                time.Time
}

func newPlan(in Input) *plan {
	in.Queued, in.Min, in.Max = max(in.Queued, 0), max(in.Min, 0), max(in.Max, 0)
	in.WarmIdle, in.WarmStopped = max(in.WarmIdle, 0), max(in.WarmStopped, 0)
	p := &plan{in: in}

	for _, claim := range in.Claims {
		// The machine of an earlier claim of the same name still exists, and may run a job for hours. Until it is
		// deleted, this claim gets no machine, so the plan leaves it out, and only freeCapacity counts it. The claim
		// is not deleted, because it shows that the earlier claim is gone, so that the earlier machine is deleted.
		if claim.StuckReason == StuckNamesake && (claim.State == ClaimPending || claim.State == ClaimStandby) {
			continue
		}

		p.addClaim(claim)
	}

	slices.SortFunc(p.idle, func(a, b Claim) int {
		return cmp.Or(a.IdleSince.Compare(b.IdleSince), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(p.standby, func(a, b Claim) int {
		return cmp.Or(a.rankStuck()-b.rankStuck(), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name))
	})

	p.target = min(max(in.Min, in.Queued+p.busy+in.WarmIdle), in.Max)

	return p
}

// addClaim counts a claim by its state. A bound machine is idle only until its job starts, so it counts as
// starting.
func (p *plan) addClaim(claim Claim) {
	switch claim.State {
	case ClaimFinishing:
		p.finishing++

		if claim.Outdated {
			p.finishingOutdated++
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

// countUsable returns how many machines run a job or may run one without an activation.
func (p *plan) countUsable() int { return p.busy + len(p.starting) + len(p.idle) }

// freeCapacity returns how many machines may be created, with every existing machine counted.
func (p *plan) freeCapacity() int { return max(p.in.Max-len(p.in.Claims), 0) }

// scaleUp plans the creation and activation of the missing machines. After consecutive failures, it waits for a
// back-off. After probeAfter failures, it then plans only one machine at a time.
func (p *plan) scaleUp(out *Decision) {
	out.Reason = ReasonScalingUp
	need := p.target - p.countUsable()
	retry := p.in.LastFailure.Add(Backoff(p.in.Failures))

	if p.isBackingOff() {
		p.scheduleAt(retry)
		out.Reason = ReasonBackingOff
		out.Message = fmt.Sprintf("%s failed in a row: the pool creates the next of %d more at %s; "+
			"see the events of the pool's MachineClaims", formatMachines(p.in.Failures), need, retry.UTC().Format(time.RFC3339))

		return
	}

	if p.in.Failures >= probeAfter {
		need = max(min(need, 1-len(p.starting)), 0)
		out.Reason = ReasonBackingOff
		out.Message = fmt.Sprintf("%s failed in a row: the pool creates one machine at a time; "+
			"see the events of the pool's MachineClaims", formatMachines(p.in.Failures))
		p.fill(out, need)

		return
	}

	p.fill(out, need)

	switch {
	case out.Create+len(out.Activate) == 0:
		out.Reason = ReasonWaitingForDeletion
		out.Message = fmt.Sprintf("%s more needed as soon as finished machines are deleted: scaling.maxReplicas is %d",
			formatMachines(need), p.maxReplicas())
	case len(out.Delete) > 0:
		out.Reason = ReasonReplacing
		out.Message = fmt.Sprintf("replacing %s: creating %d, starting %d",
			formatMachines(len(out.Delete)), out.Create, len(out.Activate))
	case len(out.Activate) > 0:
		out.Message = fmt.Sprintf("starting %s from standby, creating %d: %s queued, %s needed",
			formatMachines(len(out.Activate)), out.Create, formatJobs(p.in.Queued), formatMachines(p.target))
	default:
		out.Message = fmt.Sprintf("creating %s: %s queued, %s needed",
			formatMachines(out.Create), formatJobs(p.in.Queued), formatMachines(p.target))
	}
}

// isBackingOff reports whether the back-off after the last failure is not over.
func (p *plan) isBackingOff() bool {
	return p.in.Failures > 0 && p.in.Now.Before(p.in.LastFailure.Add(Backoff(p.in.Failures)))
}

// fill provides machines: it first activates machines on standby, then creates new ones as far as Max
// allows. It does not activate outdated machines, because they are replaced, nor those that cannot be started now. If
// Max does not allow enough machines, it deletes machines on standby that cannot be started, to make room.
func (p *plan) fill(out *Decision, need int) {
	p.standby = slices.DeleteFunc(p.standby, func(claim Claim) bool {
		if need <= 0 || claim.Outdated || claim.StuckReason != "" {
			return false
		}

		out.Activate = append(out.Activate, claim.Name)
		p.starting = append(p.starting, claim)
		need--

		return true
	})

	out.Create = min(need, p.freeCapacity())
	// Machines that finish or are deleted leave their places in any case.
	missing := need - out.Create - p.finishing - len(out.Delete)

	p.standby = slices.DeleteFunc(p.standby, func(claim Claim) bool {
		if missing <= 0 || claim.StuckReason == "" {
			return false
		}

		out.Delete = append(out.Delete, newStuckDeletion(claim))
		missing--

		return true
	})
}

// fillStandby plans the creation of missing machines on standby, if Max has room for them in addition to the
// other machines. If there are too many, it deletes the youngest ones without a delay, because a machine on
// standby costs only disk space to create again.
func (p *plan) fillStandby(out *Decision) {
	standbyTarget := min(p.in.WarmStopped, max(p.in.Max-p.countUsable()-out.Create, 0))

	if surplus := len(p.standby) - standbyTarget; surplus > 0 {
		for _, claim := range p.standby[standbyTarget:] {
			out.Delete = append(out.Delete, Deletion{
				claim.Name, DeleteSurplus, "the pool needs " + formatMachines(standbyTarget) + " on standby",
			})
		}

		return
	}

	// The standby is a reserve. It is not refilled while machines fail.
	if p.in.Failures >= probeAfter || p.isBackingOff() {
		return
	}

	// Machines that the target needs and that Max does not allow yet come first.
	short := max(p.target-p.countUsable()-out.Create, 0)
	out.CreateStandby = max(min(standbyTarget-len(p.standby), p.freeCapacity()-out.Create-short), 0)

	if out.CreateStandby > 0 && out.Reason == ReasonSteady {
		out.Reason = ReasonScalingUp
		out.Message = fmt.Sprintf("%s; creating %d more for standby", out.Message, out.CreateStandby)
	}
}

func (p *plan) explainSteady(out *Decision) {
	out.Reason = ReasonSteady
	out.Message = formatMachines(p.target) + " needed and present"

	if len(out.Delete) > 0 {
		out.Reason = ReasonReplacing
		out.Message = fmt.Sprintf("deleting %s: %d others needed and present",
			formatMachines(len(out.Delete)), p.target)
	}

	if short := p.in.Queued - len(p.starting) - len(p.idle); short > 0 {
		out.Reason = ReasonAtMaximum
		out.Message = fmt.Sprintf("%s queued until other jobs end: scaling.maxReplicas is %d", formatJobs(short), p.maxReplicas())
	}
}

func (p *plan) maxReplicas() int { return max(p.in.poolMax, p.in.Max) }

// requeueAfter returns the delay until the decision changes because of the time alone; zero means never.
func (p *plan) requeueAfter() time.Duration {
	for _, claim := range p.in.Claims {
		if claim.State != ClaimBusy && claim.State != ClaimFinishing {
			p.scheduleExpiry(claim.CreatedAt, p.in.MaxLifetime)
		}
	}

	for _, claim := range p.idle {
		p.scheduleExpiry(claim.IdleSince, p.in.IdleTimeout)
	}

	p.scheduleAt(p.in.Boundary)

	if p.nextTime.IsZero() {
		return 0
	}

	return p.nextTime.Sub(p.in.Now)
}

func (p *plan) isDue(since time.Time, limit time.Duration) bool {
	return limit > 0 && !p.in.Now.Before(since.Add(limit))
}

func (p *plan) scheduleExpiry(since time.Time, limit time.Duration) {
	if limit > 0 {
		p.scheduleAt(since.Add(limit))
	}
}

// scheduleAt schedules another decision, unless the time is over or an earlier one is scheduled.
func (p *plan) scheduleAt(timestamp time.Time) {
	if timestamp.After(p.in.Now) && (p.nextTime.IsZero() || timestamp.Before(p.nextTime)) {
		p.nextTime = timestamp
	}
}

func formatMachines(n int) string { return english.Plural(n, "machine", "") }

func formatJobs(n int) string { return english.Plural(n, "job", "") }
