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
	// firstRetry after checks that failed, doubled with each further failure.
	firstRetry = 10 * time.Second
	// maxRetry is the longest pause after a failure.
	maxRetry = 5 * time.Minute
)

// rhythm is when a set of checks is made.
type rhythm struct {
	// onReady makes them when the machine becomes Ready.
	onReady bool
	// interval repeats them; 0 ends them with the first time that they have passed.
	interval time.Duration
}

// track is what is known of one set of checks of one machine.
type track struct {
	// next time that they are due; zero if they are not any more.
	next     time.Time
	failures int
	findings []finding
}

// begin sets the first time.
func begin(r rhythm, ready time.Time) track {
	if r.onReady || r.interval == 0 {
		return track{next: ready}
	}

	return track{next: ready.Add(spread(r.interval))}
}

// after notes what checks came to, and sets their next time.
func (t track) after(r rhythm, now time.Time, findings []finding) track {
	out := track{findings: findings}

	failed := false
	for _, f := range findings {
		failed = failed || f.reason != ""
	}

	switch {
	case failed:
		out.failures = t.failures + 1
		pause := min(firstRetry<<min(t.failures, 10), maxRetry)

		if r.interval > 0 {
			pause = min(pause, r.interval)
		}

		out.next = now.Add(spread(pause))
	case r.interval > 0:
		out.next = now.Add(spread(r.interval))
	}

	return out
}

// due says whether it is time.
func (t track) due(now time.Time) bool { return !t.next.IsZero() && !now.Before(t.next) }

// spread is a time of about that length, 90 to 110 percent: machines of one burst do not stay
// together.
func spread(d time.Duration) time.Duration { return wait.Jitter(d*9/10, 2.0/9) }

// dnsRhythm is when look-ups are made; false if they are off.
func dnsRhythm(settings *v1alpha1.HypervisorDNS) (rhythm, bool) {
	if settings == nil || settings.Validation == nil || !settings.Validation.Enabled {
		return rhythm{}, false
	}

	return rhythm{onReady: settings.Validation.ValidateOnReady, interval: length(settings.Validation.ValidateInterval)}, true
}

// networkRhythm is when tests are made; false if they are off.
func networkRhythm(spec v1alpha1.HypervisorClusterSpec) (rhythm, bool) {
	if spec.Network == nil || spec.Network.Validation == nil || !spec.Network.Validation.Enabled {
		return rhythm{}, false
	}

	if !spec.Network.Validation.PingTest && !spec.Network.Validation.SSHTest {
		return rhythm{}, false
	}

	out := rhythm{onReady: true, interval: length(spec.Network.Validation.ValidateInterval)}
	if out.interval == 0 && spec.DNS != nil && spec.DNS.Validation != nil {
		out.interval = length(spec.DNS.Validation.ValidateInterval)
	}

	return out, true
}

func length(d *metav1.Duration) time.Duration {
	if d == nil {
		return 0
	}

	return d.Duration
}
