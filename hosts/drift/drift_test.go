// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drift_test

import (
	"cmp"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

func newPolicy() drift.Policy {
	return drift.Policy{MaxAttempts: 5, MaxBootstrapAttempts: 8, BaseBackoff: time.Minute, MaxBackoff: 30 * time.Minute}
}

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func ago(d time.Duration) *metav1.Time { return new(metav1.NewTime(now().Add(-d))) }

// TestHostConfigDrift covers the documented cases and cases that were found later.
func TestHostConfigDrift(t *testing.T) {
	t.Parallel()

	type status = v1alpha1.HostStatus

	refused := func(times int32, since time.Duration) status {
		return status{
			Bootstrapped: true, FailedHostConfigHash: "b", UpdateAttempts: times, LastUpdateFailureTime: ago(since),
		}
	}
	failed := func(reason string) status {
		out := refused(5, time.Second)
		out.FailureReason = reason

		return out
	}

	const exceeded = v1alpha1.FailureUpdateExceededRetries

	cases := map[string]struct {
		host    status
		desired string
		want    drift.Action
		// next is the action after the want, if it is another one.
		next drift.Action
		// until is how long a Wait takes.
		until time.Duration
		// clears is true if the recorded failure has to be cleared.
		clears bool
	}{
		"match":                            {host: status{Bootstrapped: true, HostConfigHash: "a"}, desired: "a", want: drift.Nothing},
		"mismatch":                         {host: status{Bootstrapped: true, HostConfigHash: "a"}, desired: "b", want: drift.Update},
		"empty machine hash drifts once":   {host: status{Bootstrapped: true}, desired: "b", want: drift.Update},
		"empty operator hash never drifts": {host: status{Bootstrapped: true, HostConfigHash: "a"}, desired: "", want: drift.Nothing},
		"empty operator hash, new host":    {host: status{}, desired: "", want: drift.Nothing},
		"new host":                         {host: status{}, desired: "b", want: drift.FirstBoot},
		"lost a part": {
			host: status{Bootstrapped: true, HostConfigHash: "a", LostParts: []string{"x"}}, desired: "a", want: drift.Repair,
		},
		"lost a part, and has another configuration to apply": {
			host: status{Bootstrapped: true, HostConfigHash: "a", LostParts: []string{"x"}}, desired: "b", want: drift.Update,
		},
		"rejected once, recently": {
			host: refused(1, time.Second), desired: "b", want: drift.Wait, next: drift.Update, until: time.Minute - time.Second,
		},
		"rejected once, long ago": {host: refused(1, time.Hour), desired: "b", want: drift.Update},
		"rejected three times": {
			host: refused(3, 0), desired: "b", want: drift.Wait, next: drift.Update, until: 4 * time.Minute,
		},
		"rejected another configuration":       {host: refused(3, 0), desired: "c", want: drift.Update},
		"failed terminally":                    {host: failed(exceeded), desired: "b", want: drift.Terminal, next: drift.Update},
		"failed terminally, new configuration": {host: failed(exceeded), desired: "c", want: drift.Update, clears: true},
		"failed terminally, back to the old configuration": {
			host: status{
				Bootstrapped: true, FailedHostConfigHash: "b", UpdateAttempts: 5, LastUpdateFailureTime: ago(0), FailureReason: exceeded,
			},
			desired: "a", want: drift.Update, clears: true,
		},
		"failed terminally, no configuration": {host: failed(exceeded), desired: "", want: drift.Terminal, next: drift.Nothing},
		"changed host key": {
			host: failed(v1alpha1.FailureHostKeyChanged), desired: "c", want: drift.Terminal, next: drift.Update,
		},
		"failure cleared by hand": {host: refused(5, 0), desired: "b", want: drift.Update},
		"first boot rejected twice": {
			host:    status{FailedHostConfigHash: "b", BootstrapAttempts: 2, LastUpdateFailureTime: ago(0)},
			desired: "b", want: drift.Wait, next: drift.FirstBoot, until: 2 * time.Minute,
		},
		"unreachable, with drift": {
			host:    status{Bootstrapped: true, HostConfigHash: "a", ContactAttempts: 9, LastContactTime: ago(time.Minute)},
			desired: "b", want: drift.Wait, next: drift.Update, until: 29 * time.Minute,
		},
		"unreachable, without drift": {
			host:    status{Bootstrapped: true, HostConfigHash: "a", ContactAttempts: 9, LastContactTime: ago(time.Minute)},
			desired: "a", want: drift.Nothing,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := drift.Decide(&tc.host, drift.Desired{Hash: tc.desired}, newPolicy(), now())
			next := cmp.Or(tc.next, tc.want)
			if got.Action != tc.want || got.NextAction != next || got.ShouldClearFailure != tc.clears {
				t.Errorf("Decide() = %+v: want %s, then %s, and that it clears the failure: %v", got, tc.want, next, tc.clears)
			}

			if tc.want == drift.Wait && !got.RetryTime.Equal(now().Add(tc.until)) {
				t.Errorf("waits for %s, want %s", got.RetryTime.Sub(now()), tc.until)
			}

			// With the result of the push recorded, the host has converged.
			if got.Action == drift.Update {
				pushed := *tc.host.DeepCopy()
				if tc.clears {
					pushed.FailureReason = ""
				}

				drift.ApplyResult(&pushed, drift.Outcome{Action: got.Action, Hash: tc.desired, Time: now()}, newPolicy())

				if again := drift.Decide(&pushed, drift.Desired{Hash: tc.desired}, newPolicy(), now()); again.Action != drift.Nothing {
					t.Errorf("the host drifts a second time: %+v", again)
				}
			}
		})
	}
}

// The back-off grows with the failures but never exceeds the cap.
func TestBackoff(t *testing.T) {
	t.Parallel()

	property.Check(t, "grows to the cap", property.Options{}, prop.ForAll(func(n int) bool {
		p := newPolicy()
		a, b := p.Backoff(n), p.Backoff(n+1)

		return a >= p.BaseBackoff && a <= b && b <= p.MaxBackoff && (n < 6 || a == p.MaxBackoff)
	}, gen.IntRange(1, 200)))
}

// A host that has its configuration is updated to its fleet's version of the operating system if
// the host reports an older version. A refusal counts against the combination of configuration and
// version.
func TestOSVersionDrift(t *testing.T) {
	t.Parallel()

	type status = v1alpha1.HostStatus

	wanted := drift.Desired{Hash: "a", OSVersion: "15.3"}
	current := func(version string) status {
		return status{Bootstrapped: true, HostConfigHash: "a", OSVersion: version}
	}
	refused := func(target string) status {
		out := current("15.2")
		out.FailedHostConfigHash, out.UpdateAttempts, out.LastUpdateFailureTime = target, 1, ago(0)

		return out
	}
	lost := current("15.2")
	lost.LostParts = []string{"x"}

	for name, tc := range map[string]struct {
		host    status
		desired drift.Desired
		want    drift.Action
	}{
		"older":                         {current("15.2"), wanted, drift.OSUpdate},
		"older patch version":           {current("15.2.10"), wanted, drift.OSUpdate},
		"versions compare as numbers":   {current("15.9"), drift.Desired{Hash: "a", OSVersion: "15.10"}, drift.OSUpdate},
		"older major version":           {current("15.3"), drift.Desired{Hash: "a", OSVersion: "26.1"}, drift.OSUpdate},
		"the same":                      {current("15.3"), wanted, drift.Nothing},
		"the same, longer":              {current("15.3.0"), wanted, drift.Nothing},
		"newer":                         {current("15.3.1"), wanted, drift.Nothing},
		"version unknown":               {current(""), wanted, drift.Nothing},
		"version not reported":          {current(drift.UnknownOS), wanted, drift.Nothing},
		"none wanted":                   {current("15.2"), drift.Desired{Hash: "a"}, drift.Nothing},
		"configuration first":           {current("15.2"), drift.Desired{Hash: "b", OSVersion: "15.3"}, drift.Update},
		"repair first":                  {lost, wanted, drift.Repair},
		"rejected recently":             {refused(wanted.Target()), wanted, drift.Wait},
		"rejected with another version": {refused("a+macos-15.2.1"), wanted, drift.OSUpdate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if got := drift.Decide(&tc.host, tc.desired, newPolicy(), now()); got.Action != tc.want {
				t.Errorf("Decide() = %+v, want %s", got, tc.want)
			}
		})
	}
}
