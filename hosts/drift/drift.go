// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
)

// Action is what has to happen.
type Action string

const (
	// Nothing has to happen: the host is as it should be, or there is nothing that it should be.
	Nothing Action = "Nothing"
	// FirstBoot brings all parts to a host that is new.
	FirstBoot Action = "FirstBoot"
	// Update brings the fleet's configuration to a host that has another one.
	Update Action = "Update"
	// Repair brings back parts that the host has lost.
	Repair Action = "Repair"
	// OSUpdate brings another version of its operating system to a host that has the configuration.
	OSUpdate Action = "OSUpdate"
	// Wait until the time of the decision: the host failed, or could not be reached.
	Wait Action = "Wait"
	// Terminal is a host that is left alone.
	Terminal Action = "Terminal"
	// Greet sees a host for the first time: it connects, and sends nothing but a login.
	Greet Action = "Greet"
	// Leave takes what lets it join its cluster off a host that is given up.
	Leave Action = "Leave"
	// Probe asks which parts are as they were left.
	Probe Action = "Probe"
)

// Pushes says whether the action pushes anything.
func (a Action) Pushes() bool { return a == FirstBoot || a == Update || a == Repair }

// Rolls says whether the action goes to a fleet's hosts in the order of its rollout.
func (a Action) Rolls() bool { return a == Update || a == OSUpdate }

// Desired is what a host should have.
type Desired struct {
	// Hash of the configuration; empty: nothing is brought to any host.
	Hash string
	// OSVersion that the host's operating system has at least; empty: it is left alone.
	OSVersion string
}

// Target names both, as permits and refusals have it: of another one all begins anew.
func (d Desired) Target() string {
	if d.Hash == "" || d.OSVersion == "" {
		return d.Hash
	}

	return d.Hash + "+macos-" + d.OSVersion
}

// Older says whether the first version is before the second. One that can't be read is not.
func Older(has, wanted string) bool {
	a, err := version.ParseGeneric(has)
	if err != nil {
		return false
	}

	b, err := version.ParseGeneric(wanted)

	return err == nil && a.LessThan(b)
}

// Reached says whether a host's version is the wanted one or later, where one is wanted.
func Reached(has, wanted string) bool {
	_, err := version.ParseGeneric(has)

	return wanted == "" || err == nil && !Older(has, wanted)
}

// Policy says how often and how soon a push is tried again.
type Policy struct {
	// MaxAttempts and MaxBoots are how many times a host may refuse one configuration, and
	// its first boot.
	MaxAttempts, MaxBoots int
	// Base is how long is waited after the first failure; each further one doubles it, up to
	// Cap.
	Base, Cap time.Duration
}

// Backoff is how long is waited after so many failures in a row.
func (p Policy) Backoff(failures int) time.Duration {
	wait := p.Base
	for range failures - 1 {
		if wait *= 2; wait >= p.Cap || wait <= 0 {
			return p.Cap
		}
	}

	return min(wait, p.Cap)
}

// Decision is what has to happen to a host.
type Decision struct {
	Do Action
	// Next is what Wait waits to do.
	Next Action
	// Until is the end of a Wait.
	Until time.Time
	// Heal says that the host had failed for good with another configuration: its failure is
	// to be cleared.
	Heal bool
	// Attempts that count: how many times the host has refused the desired configuration.
	Attempts int
}

// Decide looks at what is known of a host, and at what it should have.
//
// A host without a hash drifts once; without a desired hash none ever does. A host that has
// failed for good stays so until its failureReason is cleared by hand, or the desired
// configuration is another one than it refused; where the failure is not that of a
// configuration, only by hand.
func Decide(host *v1alpha1.HostStatus, desired Desired, policy Policy, now time.Time) Decision {
	next := wanted(host, desired)
	moved := desired.Hash != "" && host.FailedHostConfigHash != desired.Target()

	d := Decision{Do: next, Next: next}
	if !moved {
		d.Attempts = int(host.UpdateAttempts)
	}

	most := policy.MaxAttempts

	if !host.Bootstrapped {
		d.Attempts, most = int(host.BootstrapAttempts), policy.MaxBoots
	}

	if host.FailureReason != "" {
		if !moved || !heals(host.FailureReason) {
			d.Do = Terminal

			return d
		}

		d.Heal, d.Attempts = true, 0
	}

	// It has had all its attempts and has not failed for good: somebody gives it more.
	if d.Attempts >= most {
		d.Attempts = 0
	}

	if next == Nothing {
		return d
	}

	if d.Until = until(host, d.Attempts, policy); now.Before(d.Until) {
		d.Do = Wait
	}

	return d
}

// wanted is what has to be pushed, failures apart.
func wanted(host *v1alpha1.HostStatus, desired Desired) Action {
	switch {
	case desired.Hash == "":
		return Nothing
	case !host.Bootstrapped:
		return FirstBoot
	case plan.Drifted(host.HostConfigHash, desired.Hash):
		return Update
	case len(host.LostParts) > 0:
		return Repair
	case Older(host.OSVersion, desired.OSVersion):
		return OSUpdate
	default:
		return Nothing
	}
}

// heals says whether another configuration may fix a failure.
func heals(reason string) bool {
	return reason == v1alpha1.FailureUpdateExceededRetries || reason == v1alpha1.FailureBootstrapExceededRetries
}

// until is before when nothing is tried: the later of what being refused and not being
// reached ask for.
func until(host *v1alpha1.HostStatus, attempts int, policy Policy) time.Time {
	var out time.Time

	if attempts > 0 && host.LastUpdateFailureTime != nil {
		out = host.LastUpdateFailureTime.Add(policy.Backoff(attempts))
	}

	if host.ContactAttempts > 0 && host.LastContactTime != nil {
		if reach := host.LastContactTime.Add(policy.Backoff(int(host.ContactAttempts))); reach.After(out) {
			out = reach
		}
	}

	return out
}
