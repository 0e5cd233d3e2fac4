// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drift_test

import (
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

func policy() drift.Policy {
	return drift.Policy{MaxAttempts: 5, MaxBootstrapAttempts: 8, Base: time.Minute, Cap: 30 * time.Minute}
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

	cases := map[string]struct {
		host    status
		desired string
		want    drift.Action
		next    drift.Action
		until   time.Duration
		heal    bool
	}{
		"match":                            {status{Bootstrapped: true, HostConfigHash: "a"}, "a", drift.Nothing, drift.Nothing, 0, false},
		"mismatch":                         {status{Bootstrapped: true, HostConfigHash: "a"}, "b", drift.Update, drift.Update, 0, false},
		"empty machine hash drifts once":   {status{Bootstrapped: true}, "b", drift.Update, drift.Update, 0, false},
		"empty operator hash never drifts": {status{Bootstrapped: true, HostConfigHash: "a"}, "", drift.Nothing, drift.Nothing, 0, false},
		"empty operator hash, new host":    {status{}, "", drift.Nothing, drift.Nothing, 0, false},
		"new host":                         {status{}, "b", drift.FirstBoot, drift.FirstBoot, 0, false},
		"lost a part":                      {status{Bootstrapped: true, HostConfigHash: "a", LostParts: []string{"x"}}, "a", drift.Repair, drift.Repair, 0, false},
		"lost a part, and is to be another": {
			status{Bootstrapped: true, HostConfigHash: "a", LostParts: []string{"x"}}, "b", drift.Update, drift.Update, 0, false,
		},
		"refused once, a moment ago":       {refused(1, time.Second), "b", drift.Wait, drift.Update, time.Minute - time.Second, false},
		"refused once, long ago":           {refused(1, time.Hour), "b", drift.Update, drift.Update, 0, false},
		"refused three times":              {refused(3, 0), "b", drift.Wait, drift.Update, 4 * time.Minute, false},
		"refused another configuration":    {refused(3, 0), "c", drift.Update, drift.Update, 0, false},
		"failed for good":                  {failed(v1alpha1.FailureUpdateExceededRetries), "b", drift.Terminal, drift.Update, 0, false},
		"failed for good, config moved on": {failed(v1alpha1.FailureUpdateExceededRetries), "c", drift.Update, drift.Update, 0, true},
		"failed for good, back to the old": {
			status{
				Bootstrapped: true, FailedHostConfigHash: "b", UpdateAttempts: 5, LastUpdateFailureTime: ago(0),
				FailureReason: v1alpha1.FailureUpdateExceededRetries,
			}, "a", drift.Update, drift.Update, 0, true,
		},
		"failed for good, no config":          {failed(v1alpha1.FailureUpdateExceededRetries), "", drift.Terminal, drift.Nothing, 0, false},
		"another host by its key":             {failed(v1alpha1.FailureHostKeyChanged), "c", drift.Terminal, drift.Update, 0, false},
		"failure cleared by hand starts anew": {refused(5, 0), "b", drift.Update, drift.Update, 0, false},
		"first boot refused twice": {
			status{FailedHostConfigHash: "b", BootstrapAttempts: 2, LastUpdateFailureTime: ago(0)},
			"b", drift.Wait, drift.FirstBoot, 2 * time.Minute, false,
		},
		"unreachable has refused nothing": {
			status{Bootstrapped: true, HostConfigHash: "a", ContactAttempts: 9, LastContactTime: ago(time.Minute)},
			"b", drift.Wait, drift.Update, 29 * time.Minute, false,
		},
		"unreachable and in no drift": {
			status{Bootstrapped: true, HostConfigHash: "a", ContactAttempts: 9, LastContactTime: ago(time.Minute)},
			"a", drift.Nothing, drift.Nothing, 0, false,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := drift.Decide(&tc.host, drift.Desired{Hash: tc.desired}, policy(), now())
			if got.Action != tc.want || got.NextAction != tc.next || got.ShouldClearFailure != tc.heal {
				t.Errorf("Decide() = %+v: want %s, then %s, heal %v", got, tc.want, tc.next, tc.heal)
			}

			if tc.want == drift.Wait && !got.RetryTime.Equal(now().Add(tc.until)) {
				t.Errorf("waits for %s, want %s", got.RetryTime.Sub(now()), tc.until)
			}

			// With the hash recorded after the push, the host has converged.
			if got.Action == drift.Update {
				stamped := status{Bootstrapped: true, HostConfigHash: tc.desired}
				if again := drift.Decide(&stamped, drift.Desired{Hash: tc.desired}, policy(), now()); again.Action != drift.Nothing {
					t.Errorf("it drifts a second time: %+v", again)
				}
			}
		})
	}
}

// The back-off grows with the failures but never exceeds the cap.
func TestBackoff(t *testing.T) {
	t.Parallel()

	property.Check(t, "grows to the cap", property.Options{}, prop.ForAll(func(n int) bool {
		p := policy()
		a, b := p.Backoff(n), p.Backoff(n+1)

		return a >= p.Base && a <= b && b <= p.Cap && (n < 6 || a == p.Cap)
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
		"older by a number":             {current("15.2.10"), wanted, drift.OSUpdate},
		"nine is before ten":            {current("15.9"), drift.Desired{Hash: "a", OSVersion: "15.10"}, drift.OSUpdate},
		"a major version":               {current("15.3"), drift.Desired{Hash: "a", OSVersion: "26.1"}, drift.OSUpdate},
		"the same":                      {current("15.3"), wanted, drift.Nothing},
		"the same, longer":              {current("15.3.0"), wanted, drift.Nothing},
		"newer":                         {current("15.3.1"), wanted, drift.Nothing},
		"not known":                     {current(""), wanted, drift.Nothing},
		"not told":                      {current(drift.UnknownOS), wanted, drift.Nothing},
		"none wanted":                   {current("15.2"), drift.Desired{Hash: "a"}, drift.Nothing},
		"its configuration comes first": {current("15.2"), drift.Desired{Hash: "b", OSVersion: "15.3"}, drift.Update},
		"what it has lost comes first":  {lost, wanted, drift.Repair},
		"refused a moment ago":          {refused(wanted.Target()), wanted, drift.Wait},
		"refused with another version":  {refused("a+macos-15.2.1"), wanted, drift.OSUpdate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if got := drift.Decide(&tc.host, tc.desired, policy(), now()); got.Action != tc.want {
				t.Errorf("Decide() = %+v, want %s", got, tc.want)
			}
		})
	}
}
