// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/kit/window"
)

// Policy is how a configuration reaches a fleet.
type Policy struct {
	// MaxUnavailable hosts at any moment: at least 1.
	MaxUnavailable int
	// Canary hosts have to have a configuration before the rest gets it.
	Canary int
	// Threshold is the number of hosts that refuse a configuration at which it is stopped: at
	// least 1.
	Threshold int
	// Jitter spreads hosts over so much time.
	Jitter time.Duration
	// Windows are when updates may go; none means always.
	Windows []Window
	Paused  bool
	// ResumedAt forgives what failed before.
	ResumedAt time.Time
}

// Window is a maintenance window.
type Window struct {
	Name string
	window.Window
}

// Permit lets one host be pushed to, once.
type Permit struct {
	Host   string
	Number int64
	Hash   string
	What   drift.Action
}

// State is what has to be remembered of a fleet.
type State struct {
	// Hash that is rolled out, and since when.
	Hash    string
	Started time.Time
	// Permits that are out, in the order of their hosts' names; LastPermit is the highest
	// number there was.
	Permits    []Permit
	LastPermit int64
	// StoppedHash is a configuration that was stopped, with when and why.
	StoppedHash   string
	StoppedAt     time.Time
	StoppedReason string
}

// Host is one host of the fleet as it is now.
type Host struct {
	Name string
	// Want is Update, OSUpdate or Repair for a host that may be pushed to as soon as NotBefore.
	Want      drift.Action
	NotBefore time.Time
	// Applied is the hash of the configuration that it has, its operating system's version
	// included where the fleet names one, Refused that of the one it
	// refused last and since has not taken, at RefusedAt.
	Applied, Refused string
	RefusedAt        time.Time
	// Failed for good, or Unreachable.
	Failed, Unreachable bool
	// Pushing says that something is being pushed to it; LastPermit is the number of the
	// last permit that it used up.
	Pushing    bool
	LastPermit int64
	// Leaving is being deleted: nothing begins there any more.
	Leaving bool
}

// Report is what there is to say of a fleet.
type Report struct {
	Hosts, Converged, Drifted, Failed, Unreachable, Refused int
	// Reason and Message say why hosts that have drifted are not pushed to, or that they are.
	Reason, Message string
	// Stopped says that the configuration was stopped just now.
	Stopped bool
	// Next is when something may change by itself; zero for never.
	Next time.Time
	// Problems of windows whose words can't be followed: they count as closed.
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

// decision is one decision under way.
type decision struct {
	policy Policy
	state  State
	hosts  []Host
	now    time.Time
	report Report
	// flying are the hosts with a permit, away those that are unavailable, they included.
	flying, away map[string]bool
	// missing is how many canaries are missing, and windows says that one is open.
	missing int
	windows bool
}

// Decide gives the state that the fleet has to have next, with the permits that are out
// then, and what there is to say. It gives the same for the same input, whatever the order
// of the hosts. The state has to be on record before any permit is used.
func Decide(policy Policy, state State, hosts []Host, desired string, now time.Time) (State, Report) {
	d := &decision{
		policy: policy, state: state, now: now, flying: map[string]bool{}, away: map[string]bool{},
		hosts: slices.SortedFunc(slices.Values(hosts), func(a, b Host) int { return cmp.Compare(a.Name, b.Name) }),
	}

	if d.state.Hash != desired {
		d.state.Hash, d.state.Started = desired, now
	}

	d.collect()
	d.count()
	d.stop()
	d.open()
	d.grant()
	d.say()

	return d.state, d.report
}

// collect takes back the permits that are used up.
func (d *decision) collect() {
	byName := map[string]Host{}
	for _, host := range d.hosts {
		byName[host.Name] = host
	}

	var out []Permit

	for _, permit := range d.state.Permits {
		host, there := byName[permit.Host]
		used := host.LastPermit >= permit.Number && !host.Pushing
		gone := host.Leaving && !host.Pushing

		if there && !used && !gone {
			out = append(out, permit)
			d.flying[permit.Host] = true
		}
	}

	d.state.Permits = out
}

func (d *decision) count() {
	d.report.Hosts = len(d.hosts)
	d.missing = min(d.policy.Canary, len(d.hosts))

	for _, host := range d.hosts {
		if d.flying[host.Name] || host.Unreachable || host.Failed {
			d.away[host.Name] = true
		}

		d.missing -= one(d.converged(host))
		d.report.Converged += one(d.converged(host) && host.Want != drift.Repair && !host.Failed)
		d.report.Drifted += one(host.Want != drift.Nothing)
		d.report.Failed += one(host.Failed)
		d.report.Unreachable += one(host.Unreachable)
		d.report.Refused += one(d.refused(host))
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}

	return 0
}

func (d *decision) converged(host Host) bool {
	return d.state.Hash != "" && host.Applied == d.state.Hash
}

// refused says whether a host counts towards the threshold.
func (d *decision) refused(host Host) bool {
	return d.state.Hash != "" && host.Refused == d.state.Hash && host.RefusedAt.After(d.policy.ResumedAt)
}

// stop stops a configuration that too many hosts refuse, and lets one go on that is
// another, or that was resumed. Times are whole seconds: one that was resumed in the second of
// its stop goes on too, since no refusal up to then counts.
func (d *decision) stop() {
	s := &d.state
	if s.StoppedHash != s.Hash || !d.policy.ResumedAt.Before(s.StoppedAt) {
		s.StoppedHash, s.StoppedAt, s.StoppedReason = "", time.Time{}, ""
	}

	if s.StoppedHash != "" || d.report.Refused < max(1, d.policy.Threshold) {
		return
	}

	var names []string

	for _, host := range d.hosts {
		if d.refused(host) {
			names = append(names, host.Name)
		}
	}

	const most = 5

	s.StoppedHash, s.StoppedAt = s.Hash, d.now
	s.StoppedReason = fmt.Sprintf(
		"%d of %d hosts refused the configuration, such as %v: fix it, or resume the fleet to go on with it",
		len(names), len(d.hosts), names[:min(len(names), most)])
	d.report.Stopped = true
}

// open says whether a maintenance window is open.
func (d *decision) open() {
	d.windows = len(d.policy.Windows) == 0

	for _, w := range d.policy.Windows {
		open, boundary, err := w.At(d.now)
		if err != nil {
			d.report.Problems = append(d.report.Problems, fmt.Errorf("rollout.maintenanceWindows %q: %w", w.Name, err))

			continue
		}

		d.windows = d.windows || open
		d.wake(boundary)
	}
}

func (d *decision) wake(at time.Time) {
	if at.After(d.now) && (d.report.Next.IsZero() || at.Before(d.report.Next)) {
		d.report.Next = at
	}
}

// grant gives out permits.
func (d *decision) grant() {
	if d.policy.Paused || d.state.Hash == "" {
		return
	}

	most := max(1, d.policy.MaxUnavailable)

	for _, host := range d.candidates() {
		if len(d.flying) >= most {
			break
		}

		if !d.away[host.Name] && len(d.away) >= most || host.Want.Rolls() && d.held() != "" {
			continue
		}

		d.state.LastPermit++
		d.flying[host.Name], d.away[host.Name] = true, true
		d.state.Permits = append(d.state.Permits, Permit{
			Host: host.Name, Number: d.state.LastPermit, Hash: d.state.Hash, What: host.Want,
		})
	}

	slices.SortFunc(d.state.Permits, func(a, b Permit) int { return cmp.Compare(a.Host, b.Host) })
}

// held is the reason why no update goes at all now; empty if one may.
func (d *decision) held() string {
	switch {
	case d.state.StoppedHash != "":
		return ReasonStopped
	case !d.windows:
		return ReasonWindow
	case d.canaries() <= 0:
		return ReasonCanary
	default:
		return ""
	}
}

// canaries is how many more hosts may be in flight while canaries are missing; many when
// none is.
func (d *decision) canaries() int {
	missing := d.missing
	if missing <= 0 {
		return len(d.hosts)
	}

	for _, permit := range d.state.Permits {
		missing -= one(permit.What.Rolls())
	}

	return missing
}

// candidates are the hosts that could be pushed to now: repairs first, then hosts that are
// well before those that are not, as they say more of a configuration; then in an order
// that is another one for each configuration.
func (d *decision) candidates() []Host {
	var out []Host

	for _, host := range d.hosts {
		if !host.Want.Rolls() && host.Want != drift.Repair || d.flying[host.Name] || host.Pushing || host.Leaving {
			continue
		}

		at := host.NotBefore
		if host.Want.Rolls() && d.missing <= 0 {
			if spread := d.state.Started.Add(d.delay(host.Name)); spread.After(at) {
				at = spread
			}
		}

		if at.After(d.now) {
			d.wake(at)

			continue
		}

		out = append(out, host)
	}

	slices.SortStableFunc(out, func(a, b Host) int {
		return cmp.Or(
			cmp.Compare(one(b.Want == drift.Repair), one(a.Want == drift.Repair)),
			cmp.Compare(one(d.away[a.Name]), one(d.away[b.Name])),
			cmp.Compare(spread(a.Name, d.state.Hash), spread(b.Name, d.state.Hash)),
		)
	})

	return out
}

// delay is a host's part of the jitter: the same whenever it is asked.
func (d *decision) delay(name string) time.Duration {
	if d.policy.Jitter <= 0 {
		return 0
	}

	return time.Duration(spread(name, d.state.Hash) % uint64(d.policy.Jitter)) //nolint:gosec // G115: below a duration
}

func spread(name, hash string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(hash + "/" + name))

	return h.Sum64()
}

// say puts the state into words.
func (d *decision) say() {
	r := &d.report

	held := ""
	if r.Drifted > 0 {
		held = d.held()
	}

	switch {
	case d.state.Hash == "":
		r.Reason, r.Message = ReasonNoConfig, "the operator has no configuration for this kind of host"
	case d.policy.Paused && r.Drifted > 0:
		r.Reason, r.Message = ReasonPaused, "the fleet is paused; waiting: "+english.Plural(r.Drifted, "host", "")
	case r.Drifted == 0 && r.Failed == 0:
		r.Reason, r.Message = ReasonConverged, "all have the configuration: "+english.Plural(r.Hosts, "host", "")
	case held == ReasonStopped:
		r.Reason, r.Message = held, d.state.StoppedReason
	case len(d.state.Permits) > 0:
		r.Reason = ReasonRolling
		r.Message = fmt.Sprintf("drifted: %s; being pushed to: %d", english.Plural(r.Drifted, "host", ""), len(d.state.Permits))
	case held == ReasonWindow:
		r.Reason, r.Message = held, "waiting for the next maintenance window: "+english.Plural(r.Drifted, "host", "")
	default:
		r.Reason = ReasonWaiting
		r.Message = fmt.Sprintf(
			"drifted: %s; failed for good: %d; not reachable: %d; at most %d may be unavailable",
			english.Plural(r.Drifted, "host", ""), r.Failed, r.Unreachable, max(1, d.policy.MaxUnavailable))
	}
}
