// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
)

// Action is what a host needs next.
type Action string

const (
	// Nothing means that the host is up to date, or that no configuration is desired.
	Nothing Action = "Nothing"
	// FirstBoot pushes all parts to a new host.
	FirstBoot Action = "FirstBoot"
	// Update pushes the fleet's configuration to a host that has another configuration.
	Update Action = "Update"
	// Repair pushes the parts that the host has lost.
	Repair Action = "Repair"
	// OSUpdate updates the operating system of a host that already has the configuration.
	OSUpdate Action = "OSUpdate"
	// Wait means that the host failed or was unreachable, and backs off until the decision's
	// RetryTime.
	Wait Action = "Wait"
	// Terminal means that the host failed and gets no attempt until the failure is cleared.
	Terminal Action = "Terminal"
	// Connect contacts a host for the first time to learn its host key. It runs no script.
	Connect Action = "Connect"
	// RemoveCredential deletes the credential with which the host joins its cluster, before the
	// host is released.
	RemoveCredential Action = "RemoveCredential" // #nosec G101 -- a word
	// Probe checks which parts of the host are intact.
	Probe Action = "Probe"
)

// IsPush returns true if the action pushes parts to the host.
func (a Action) IsPush() bool { return a == FirstBoot || a == Update || a == Repair }

// NeedsRollout returns true if the action follows the order of the fleet's rollout.
func (a Action) NeedsRollout() bool { return a == Update || a == OSUpdate }

// Desired is the desired state of a host.
type Desired struct {
	// Hash of the configuration. If it is empty, nothing is pushed to any host.
	Hash string
	// OSVersion is the minimum version of the host's operating system. If it is empty, the
	// operating system is not updated.
	OSVersion string
}

// Target returns the hash and the operating system's version as one string, the form that permits
// and refusals record. A new target starts with no failed attempts.
func (d Desired) Target() string {
	if d.Hash == "" || d.OSVersion == "" {
		return d.Hash
	}

	return d.Hash + "+macos-" + d.OSVersion
}

// IsOlder returns true if the current version is lower than the target. It returns false if either
// version can't be parsed.
func IsOlder(current, target string) bool {
	a, err := version.ParseGeneric(current)
	if err != nil {
		return false
	}

	b, err := version.ParseGeneric(target)

	return err == nil && a.LessThan(b)
}

// IsAtLeast returns true if the current version is the target or later, or if the target is empty or
// can't be parsed. Otherwise, it returns false if the current version can't be parsed.
func IsAtLeast(current, target string) bool {
	if target == "" {
		return true
	}

	_, err := version.ParseGeneric(current)

	return err == nil && !IsOlder(current, target)
}

// Policy limits the attempts at a host and sets the back-off between them.
type Policy struct {
	// MaxAttempts is how many times a host may refuse one configuration before it fails terminally.
	MaxAttempts int
	// MaxBootstrapAttempts is how many times a host may refuse its first boot before it fails
	// terminally.
	MaxBootstrapAttempts int
	// BaseBackoff is the back-off after the first failure. Each further failure doubles it, up to MaxBackoff.
	BaseBackoff, MaxBackoff time.Duration
}

// Backoff returns the delay after the given number of consecutive failures.
func (p Policy) Backoff(failures int) time.Duration {
	wait := p.BaseBackoff
	for range failures - 1 {
		if wait *= 2; wait >= p.MaxBackoff || wait <= 0 { // a negative wait is an overflow
			return p.MaxBackoff
		}
	}

	return min(wait, p.MaxBackoff)
}

// Decision is the action that a host needs.
type Decision struct {
	Action Action
	// NextAction is the action that follows a Wait.
	NextAction Action
	// RetryTime is when a Wait ends.
	RetryTime time.Time
	// ShouldClearFailure is true if the host failed terminally with another configuration, so the
	// recorded failure has to be cleared.
	ShouldClearFailure bool
	// Attempts is how many times the host has refused the desired configuration.
	Attempts int
}

// Decide returns the action that a host needs, given its status and its desired state.
//
// A host without a recorded hash has drifted. Without a desired hash, no host has drifted. A host that
// has failed terminally stays so until somebody clears its failureReason, or until the desired
// configuration differs from the one that it refused. If the failure was not caused by a
// configuration, only clearing failureReason ends it.
func Decide(host *v1alpha1.HostStatus, desired Desired, policy Policy, now time.Time) Decision {
	nextAction := desiredAction(host, desired)
	differsFromRefused := desired.Hash != "" && host.FailedHostConfigHash != desired.Target()

	d := Decision{Action: nextAction, NextAction: nextAction}
	if !differsFromRefused {
		d.Attempts = int(host.UpdateAttempts)
	}

	maxAttempts := policy.MaxAttempts

	if !host.Bootstrapped {
		d.Attempts, maxAttempts = int(host.BootstrapAttempts), policy.MaxBootstrapAttempts
	}

	if host.FailureReason != "" {
		if !differsFromRefused || !isFixedByNewConfig(host.FailureReason) {
			d.Action = Terminal

			return d
		}

		d.ShouldClearFailure, d.Attempts = true, 0
	}

	// The host has used all its attempts but has no failureReason: somebody cleared it, so the
	// count starts again.
	if d.Attempts >= maxAttempts {
		d.Attempts = 0
	}

	if nextAction == Nothing {
		return d
	}

	if d.RetryTime = retryTime(host, d.Attempts, policy); now.Before(d.RetryTime) {
		d.Action = Wait
	}

	return d
}

// desiredAction returns the action that the host needs, without regard to failures.
func desiredAction(host *v1alpha1.HostStatus, desired Desired) Action {
	switch {
	case desired.Hash == "":
		return Nothing
	case !host.Bootstrapped:
		return FirstBoot
	case plan.HasDrifted(host.HostConfigHash, desired.Hash):
		return Update
	case len(host.LostParts) > 0:
		return Repair
	case IsOlder(host.OSVersion, desired.OSVersion):
		return OSUpdate
	default:
		return Nothing
	}
}

// isFixedByNewConfig returns true if another configuration may fix the failure.
func isFixedByNewConfig(reason string) bool {
	return reason == v1alpha1.FailureUpdateExceededRetries || reason == v1alpha1.FailureBootstrapExceededRetries
}

// retryTime returns the time before which nothing is attempted: the later of the back-off after a
// refusal and the back-off after failed contacts.
func retryTime(host *v1alpha1.HostStatus, attempts int, policy Policy) time.Time {
	var out time.Time

	if attempts > 0 && host.LastUpdateFailureTime != nil {
		out = host.LastUpdateFailureTime.Add(policy.Backoff(attempts))
	}

	if host.ContactAttempts > 0 && host.LastContactTime != nil {
		if contactRetry := host.LastContactTime.Add(policy.Backoff(int(host.ContactAttempts))); contactRetry.After(out) {
			out = contactRetry
		}
	}

	return out
}
