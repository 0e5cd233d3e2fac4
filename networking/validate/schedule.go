// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	// minRetryDelay is the delay after the first failure. It doubles with each further failure.
	minRetryDelay = 10 * time.Second
	// maxRetryDelay is the maximum delay after a failure.
	maxRetryDelay = 5 * time.Minute
)

// schedule says when a set of checks runs.
type schedule struct {
	// onReady is true if the checks run when the machine becomes Ready.
	onReady bool
	// interval is the time between two runs. If it is 0, the checks stop after they have passed once.
	interval time.Duration
}

// progress has the results and the next time of one set of checks of one machine.
type progress struct {
	// next is the time when the checks are due. It is zero if they do not run again.
	next     time.Time
	failures int
	findings []finding
}

// newProgress returns the progress before the first run. readySince is the time when the machine became Ready.
func newProgress(checks schedule, readySince time.Time) progress {
	if checks.onReady || checks.interval == 0 {
		return progress{next: readySince}
	}

	return progress{next: readySince.Add(jitter(checks.interval))}
}

// withFindings returns the progress after a run. It sets the time of the next run, with back-off after a
// failure.
func (p progress) withFindings(checks schedule, now time.Time, findings []finding) progress {
	out := progress{findings: findings}

	hasFailed := false
	for _, f := range findings {
		hasFailed = hasFailed || f.reason != ""
	}

	switch {
	case hasFailed:
		out.failures = p.failures + 1
		delay := min(minRetryDelay<<min(p.failures, 10), maxRetryDelay) // 10 doublings do not overflow

		if checks.interval > 0 {
			delay = min(delay, checks.interval)
		}

		out.next = now.Add(jitter(delay))
	case checks.interval > 0:
		out.next = now.Add(jitter(checks.interval))
	}

	return out
}

// isDue returns whether the checks must run now.
func (p progress) isDue(now time.Time) bool { return !p.next.IsZero() && !now.Before(p.next) }

// jitter returns a random duration from 90 to 110 percent of d, so machines that were created together are
// not checked at the same time.
func jitter(d time.Duration) time.Duration { return wait.Jitter(d*9/10, 2.0/9) }

// newDNSSchedule returns the schedule of the DNS look-ups, and false if they are disabled.
func newDNSSchedule(settings *v1alpha1.HypervisorDNS) (lookUps schedule, isEnabled bool) {
	if settings == nil || settings.Validation == nil || !settings.Validation.Enabled {
		return schedule{}, false
	}

	validation := settings.Validation

	return schedule{onReady: validation.ValidateOnReady, interval: durationOrZero(validation.ValidateInterval)}, true
}

// newNetworkSchedule returns the schedule of the network tests, and false if they are disabled. The
// interval defaults to that of the DNS look-ups.
func newNetworkSchedule(spec v1alpha1.HypervisorClusterSpec) (tests schedule, isEnabled bool) {
	if spec.Network == nil || spec.Network.Validation == nil || !spec.Network.Validation.Enabled {
		return schedule{}, false
	}

	if !spec.Network.Validation.PingTest && !spec.Network.Validation.SSHTest {
		return schedule{}, false
	}

	out := schedule{onReady: true, interval: durationOrZero(spec.Network.Validation.ValidateInterval)}
	if out.interval == 0 && spec.DNS != nil && spec.DNS.Validation != nil {
		out.interval = durationOrZero(spec.DNS.Validation.ValidateInterval)
	}

	return out, true
}

func durationOrZero(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}

	return d.Duration
}
