// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/kit/window"
)

// Policy says how a configuration is rolled out to a fleet.
type Policy struct {
	// MaxUnavailable is the maximum number of unavailable hosts at any time. It is at least 1.
	MaxUnavailable int
	// Canary is how many hosts must have a configuration before the rest gets it.
	Canary int
	// Threshold is the number of refusing hosts at which a rollout stops. It is at least 1.
	Threshold int
	// Jitter is the time over which updates of hosts are spread.
	Jitter time.Duration
	// Windows are the times at which updates may start. If there are none, updates may start at any
	// time.
	Windows []Window
	Paused  bool
	// ResumedAt is when somebody resumed the fleet. Earlier refusals do not count.
	ResumedAt time.Time
}

// Window is a maintenance window.
type Window struct {
	Name string
	window.Window
}

// Permit allows one push to one host.
type Permit struct {
	Host   string
	Number int64
	Hash   string
	Action drift.Action
}

// State is the part of a fleet's status that Decide needs for its next decision.
type State struct {
	// Hash is the hash that is being rolled out since Started.
	Hash    string
	Started time.Time
	// Permits are the permits in flight, sorted by host name. LastPermit is the highest number that
	// was ever granted.
	Permits    []Permit
	LastPermit int64
	// StoppedHash is the hash of a configuration whose rollout was stopped, at StoppedAt and for
	// StoppedReason.
	StoppedHash   string
	StoppedAt     time.Time
	StoppedReason string
}

// Host is the current state of one host of the fleet.
type Host struct {
	Name string
	// Action is what the host needs. Update, OSUpdate and Repair need a permit and may start at
	// NotBefore.
	Action    drift.Action
	NotBefore time.Time
	// Applied is the hash that the host has. If the fleet names a version of the operating system,
	// the hash includes that version. Refused is the hash that the host refused last, at RefusedAt,
	// and has not accepted since.
	Applied, Refused string
	RefusedAt        time.Time
	// Failed is true if the host has failed terminally.
	Failed, Unreachable bool
	// Pushing is true while a push to the host runs under a permit. LastPermit is the number of the
	// last permit that the host used up.
	Pushing    bool
	LastPermit int64
	// Deleting is true if the host is being deleted. It gets no new permit.
	Deleting bool
}

// Report is what the fleet's conditions and metrics report.
type Report struct {
	Hosts, Converged, Drifted, Failed, Unreachable, Refused int
	// Reason and Message say why drifted hosts are not pushed to, or that they are.
	Reason, Message string
	// Stopped is true if this decision stopped the rollout.
	Stopped bool
	// Next is when to decide again without an event. It is zero for never.
	Next time.Time
	// Problems are the errors of maintenance windows that are invalid. Such a window counts as
	// closed.
	Problems []error
}

// Reasons of a Report.
const (
	ReasonConverged = "Converged"
	ReasonPaused    = "Paused"
	ReasonStopped   = "RolloutStopped"
	ReasonWindow    = "OutsideMaintenanceWindow"
	ReasonCanary    = "WaitingForCanaries"
	ReasonRolling   = "RollingOut"
	ReasonWaiting   = "WaitingForHosts"
	ReasonNoConfig  = "NoConfiguration"
)

// decision is the working state of one call of Decide.
type decision struct {
	policy Policy
	state  State
	hosts  []Host
	now    time.Time
	report Report
	// inFlight holds the hosts with a permit. unavailable holds all unavailable hosts, including
	// those in flight.
	inFlight, unavailable map[string]bool
	// missingCanaries is how many canaries do not have the configuration yet. isWindowOpen is true
	// if a maintenance window is open.
	missingCanaries int
	isWindowOpen    bool
}

// Decide returns the next state of the fleet, with the permits that are then in flight, and a
// report. The result does not depend on the order of the hosts. The caller must persist the state
// before any permit is used.
func Decide(policy Policy, state State, hosts []Host, desired string, now time.Time) (State, Report) {
	d := &decision{
		policy: policy, state: state, now: now, inFlight: map[string]bool{}, unavailable: map[string]bool{},
		hosts: slices.SortedFunc(slices.Values(hosts), func(a, b Host) int { return cmp.Compare(a.Name, b.Name) }),
	}

	if d.state.Hash != desired {
		d.state.Hash, d.state.Started = desired, now
	}

	d.removeUsedPermits()
	d.countHosts()
	d.updateStop()
	d.checkWindows()
	d.grantPermits()
	d.setReason()

	return d.state, d.report
}

// removeUsedPermits drops the permits that are used up, and those of hosts that are gone or being
// deleted.
func (d *decision) removeUsedPermits() {
	byName := map[string]Host{}
	for _, host := range d.hosts {
		byName[host.Name] = host
	}

	var out []Permit

	for _, permit := range d.state.Permits {
		host, found := byName[permit.Host]
		isUsed := host.LastPermit >= permit.Number && !host.Pushing
		isReleased := host.Deleting && !host.Pushing

		if found && !isUsed && !isReleased {
			out = append(out, permit)
			d.inFlight[permit.Host] = true
		}
	}

	d.state.Permits = out
}

// countHosts counts the hosts by state for the report. It also finds the unavailable hosts and the number of
// missing canaries.
func (d *decision) countHosts() {
	d.report.Hosts = len(d.hosts)
	d.missingCanaries = min(d.policy.Canary, len(d.hosts))

	for _, host := range d.hosts {
		if d.inFlight[host.Name] || host.Unreachable || host.Failed {
			d.unavailable[host.Name] = true
		}

		d.missingCanaries -= toInt(d.hasConverged(host))
		d.report.Converged += toInt(d.hasConverged(host) && host.Action != drift.Repair && !host.Failed)
		d.report.Drifted += toInt(host.Action != drift.Nothing)
		d.report.Failed += toInt(host.Failed)
		d.report.Unreachable += toInt(host.Unreachable)
		d.report.Refused += toInt(d.hasRefused(host))
	}
}

func toInt(value bool) int {
	if value {
		return 1
	}

	return 0
}

func (d *decision) hasConverged(host Host) bool {
	return d.state.Hash != "" && host.Applied == d.state.Hash
}

// hasRefused returns true if the host's refusal counts towards the threshold.
func (d *decision) hasRefused(host Host) bool {
	return d.state.Hash != "" && host.Refused == d.state.Hash && host.RefusedAt.After(d.policy.ResumedAt)
}

// updateStop stops the rollout of a configuration that too many hosts refuse. It ends an earlier
// stop if the configuration has changed or the fleet was resumed. Times have whole seconds, so a
// resume in the second of the stop also ends the stop, because no refusal until then counts.
func (d *decision) updateStop() {
	s := &d.state
	isResumed := !d.policy.ResumedAt.Before(s.StoppedAt)
	if s.StoppedHash != s.Hash || isResumed {
		s.StoppedHash, s.StoppedAt, s.StoppedReason = "", time.Time{}, ""
	}

	if s.StoppedHash != "" || d.report.Refused < max(1, d.policy.Threshold) {
		return
	}

	var names []string

	for _, host := range d.hosts {
		if d.hasRefused(host) {
			names = append(names, host.Name)
		}
	}

	const maxNames = 5

	s.StoppedHash, s.StoppedAt = s.Hash, d.now
	s.StoppedReason = fmt.Sprintf(
		"%d of %d hosts refused the configuration, including %s: fix the configuration, or resume the fleet to continue the rollout",
		len(names), len(d.hosts), strings.Join(names[:min(len(names), maxNames)], ", "))
	d.report.Stopped = true
}

// checkWindows finds out whether a maintenance window is open.
func (d *decision) checkWindows() {
	d.isWindowOpen = len(d.policy.Windows) == 0

	for _, w := range d.policy.Windows {
		isOpen, boundary, err := w.StateAt(d.now)
		if err != nil {
			d.report.Problems = append(d.report.Problems, fmt.Errorf("rollout.maintenanceWindows %q: %w", w.Name, err))

			continue
		}

		d.isWindowOpen = d.isWindowOpen || isOpen
		d.scheduleNext(boundary)
	}
}

// scheduleNext requests another decision at a time in the future. The earliest request counts.
func (d *decision) scheduleNext(at time.Time) {
	if at.After(d.now) && (d.report.Next.IsZero() || at.Before(d.report.Next)) {
		d.report.Next = at
	}
}

// grantPermits grants permits to hosts until the limits of the policy are reached.
func (d *decision) grantPermits() {
	if d.policy.Paused || d.state.Hash == "" {
		return
	}

	limit := max(1, d.policy.MaxUnavailable)

	for _, host := range d.candidates() {
		if len(d.inFlight) >= limit {
			break
		}

		isOverLimit := !d.unavailable[host.Name] && len(d.unavailable) >= limit
		isBlocked := host.Action.NeedsRollout() && d.blockingReason() != ""

		if isOverLimit || isBlocked {
			continue
		}

		d.state.LastPermit++
		d.inFlight[host.Name], d.unavailable[host.Name] = true, true
		d.state.Permits = append(d.state.Permits, Permit{
			Host: host.Name, Number: d.state.LastPermit, Hash: d.state.Hash, Action: host.Action,
		})
	}

	slices.SortFunc(d.state.Permits, func(a, b Permit) int { return cmp.Compare(a.Host, b.Host) })
}

// blockingReason returns why no update may start now, or an empty string if one may.
func (d *decision) blockingReason() string {
	switch {
	case d.state.StoppedHash != "":
		return ReasonStopped
	case !d.isWindowOpen:
		return ReasonWindow
	case d.canaryUpdatesLeft() <= 0:
		return ReasonCanary
	default:
		return ""
	}
}

// canaryUpdatesLeft returns how many more updates may start while canaries are missing. If none is
// missing, it returns the number of hosts.
func (d *decision) canaryUpdatesLeft() int {
	missing := d.missingCanaries
	if missing <= 0 {
		return len(d.hosts)
	}

	for _, permit := range d.state.Permits {
		missing -= toInt(permit.Action.NeedsRollout())
	}

	return missing
}

// candidates returns the hosts that could be pushed to now, in this order: repairs, then available
// hosts, because their results say more about a configuration, then unavailable hosts. Within a
// group the order depends on the hash of the host's name and the configuration, so it differs
// between configurations.
func (d *decision) candidates() []Host {
	var out []Host

	for _, host := range d.hosts {
		needsPermit := host.Action.NeedsRollout() || host.Action == drift.Repair
		if !needsPermit || d.inFlight[host.Name] || host.Pushing || host.Deleting {
			continue
		}

		start := host.NotBefore
		if host.Action.NeedsRollout() && d.missingCanaries <= 0 { // canaries start without jitter
			if jittered := d.state.Started.Add(d.jitterDelay(host.Name)); jittered.After(start) {
				start = jittered
			}
		}

		if start.After(d.now) {
			d.scheduleNext(start)

			continue
		}

		out = append(out, host)
	}

	slices.SortStableFunc(out, func(a, b Host) int {
		return cmp.Or(
			cmp.Compare(toInt(b.Action == drift.Repair), toInt(a.Action == drift.Repair)),
			cmp.Compare(toInt(d.unavailable[a.Name]), toInt(d.unavailable[b.Name])),
			cmp.Compare(nameHash(a.Name, d.state.Hash), nameHash(b.Name, d.state.Hash)),
		)
	})

	return out
}

// jitterDelay returns the host's share of the jitter. It is the same at every call.
func (d *decision) jitterDelay(name string) time.Duration {
	if d.policy.Jitter <= 0 {
		return 0
	}

	return time.Duration(nameHash(name, d.state.Hash) % uint64(d.policy.Jitter)) //nolint:gosec // G115: below a duration
}

func nameHash(name, hash string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(hash + "/" + name))

	return h.Sum64()
}

// setReason sets the report's reason and message.
func (d *decision) setReason() {
	r := &d.report

	reason := ""
	if r.Drifted > 0 {
		reason = d.blockingReason()
	}

	switch {
	case d.state.Hash == "":
		r.Reason, r.Message = ReasonNoConfig, "the operator has no configuration for this kind of host"
	case d.policy.Paused && r.Drifted > 0:
		r.Reason, r.Message = ReasonPaused, "the fleet is paused, drifted: "+english.Plural(r.Drifted, "host", "")
	case r.Drifted == 0 && r.Failed == 0:
		r.Reason, r.Message = ReasonConverged, "all hosts have the configuration: "+english.Plural(r.Hosts, "host", "")
	case reason == ReasonStopped:
		r.Reason, r.Message = reason, d.state.StoppedReason
	case len(d.state.Permits) > 0:
		r.Reason = ReasonRolling
		r.Message = fmt.Sprintf("drifted: %s; pushing to: %d", english.Plural(r.Drifted, "host", ""), len(d.state.Permits))
	case reason == ReasonWindow:
		r.Reason, r.Message = reason, "waiting for the next maintenance window: "+english.Plural(r.Drifted, "host", "")
	default:
		r.Reason = ReasonWaiting
		r.Message = fmt.Sprintf(
			"drifted: %s; failed terminally: %d; unreachable: %d; at most %d may be unavailable",
			english.Plural(r.Drifted, "host", ""), r.Failed, r.Unreachable, max(1, d.policy.MaxUnavailable))
	}
}
