// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/rollout"
	"github.com/hyperfleet/hyperfleet/kit/window"
)

func startTime() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) } // a Friday

// newDriftedHosts returns n hosts whose configuration is not "new".
func newDriftedHosts(n int) []rollout.Host {
	out := make([]rollout.Host, n)
	for i := range out {
		out[i] = rollout.Host{Name: fmt.Sprintf("h%04d", i), Action: drift.Update, Applied: "old"}
	}

	return out
}

func changeHost(hosts []rollout.Host, i int, f func(*rollout.Host)) []rollout.Host {
	hosts = slices.Clone(hosts)
	f(&hosts[i])

	return hosts
}

func setApplied(host *rollout.Host) { host.Action, host.Applied = drift.Nothing, "new" }

func TestDecide(t *testing.T) {
	t.Parallel()

	policy := rollout.Policy{MaxUnavailable: 3, Canary: 1, Threshold: 1}
	with := func(f func(*rollout.Policy)) rollout.Policy {
		p := policy
		f(&p)

		return p
	}
	first := changeHost(newDriftedHosts(6), 0, setApplied)
	failed := func(h *rollout.Host) { h.Failed, h.Action = true, drift.Terminal }
	refused := func(h *rollout.Host) { h.Refused, h.RefusedAt = "new", startTime() }

	cases := map[string]struct {
		policy  rollout.Policy
		hosts   []rollout.Host
		desired string
		permits int
		reason  string
		next    time.Duration
	}{
		"no hosts":                           {policy, nil, "new", 0, rollout.ReasonConverged, 0},
		"no configuration":                   {policy, newDriftedHosts(3), "", 0, rollout.ReasonNoConfig, 0},
		"canary first":                       {policy, newDriftedHosts(6), "new", 1, rollout.ReasonRolling, 0},
		"then up to the limit":               {policy, first, "new", 3, rollout.ReasonRolling, 0},
		"two canaries":                       {with(func(p *rollout.Policy) { p.Canary = 2 }), newDriftedHosts(6), "new", 2, rollout.ReasonRolling, 0},
		"no canaries":                        {with(func(p *rollout.Policy) { p.Canary = 0 }), newDriftedHosts(6), "new", 3, rollout.ReasonRolling, 0},
		"more canaries than the limit":       {with(func(p *rollout.Policy) { p.Canary = 5 }), newDriftedHosts(6), "new", 3, rollout.ReasonRolling, 0},
		"more canaries than hosts":           {with(func(p *rollout.Policy) { p.Canary = 5 }), first[:2], "new", 1, rollout.ReasonRolling, 0},
		"paused":                             {with(func(p *rollout.Policy) { p.Paused = true }), newDriftedHosts(6), "new", 0, rollout.ReasonPaused, 0},
		"one rejected: stopped":              {policy, changeHost(first, 1, refused), "new", 0, rollout.ReasonStopped, 0},
		"one rejected, threshold two":        {with(func(p *rollout.Policy) { p.Threshold = 2 }), changeHost(first, 1, refused), "new", 3, rollout.ReasonRolling, 0},
		"one rejected, resumed":              {with(func(p *rollout.Policy) { p.ResumedAt = startTime().Add(1) }), changeHost(first, 1, refused), "new", 3, rollout.ReasonRolling, 0},
		"one rejected another configuration": {policy, changeHost(first, 1, func(h *rollout.Host) { h.Refused, h.RefusedAt = "older", startTime() }), "new", 3, rollout.ReasonRolling, 0},
		"failed terminally is unavailable": {
			policy, changeHost(first, 1, failed), "new", 2, rollout.ReasonRolling, 0,
		},
		"unreachable is unavailable, and gets a permit": {
			with(func(p *rollout.Policy) { p.MaxUnavailable = 1 }),
			changeHost(first, 1, func(h *rollout.Host) { h.Unreachable = true }), "new", 1, rollout.ReasonRolling, 0,
		},
		"too many unavailable without a permit": {
			with(func(p *rollout.Policy) { p.MaxUnavailable = 1 }), changeHost(first, 1, failed), "new", 0, rollout.ReasonWaiting, 0,
		},
		"a host waits": {
			policy, changeHost(first[:2], 1, func(h *rollout.Host) { h.NotBefore = startTime().Add(time.Minute) }),
			"new", 0, rollout.ReasonWaiting, time.Minute,
		},
		"a host being deleted": {
			policy, changeHost(first[:2], 1, func(h *rollout.Host) { h.Deleting = true }), "new", 0, rollout.ReasonWaiting, 0,
		},
		"repairs wait for no canary, stop or window": {
			with(func(p *rollout.Policy) {
				p.Windows = []rollout.Window{{Window: window.Window{Start: "0 9 * * *", Duration: time.Hour}}}
			}),
			changeHost(changeHost(newDriftedHosts(3), 1, refused), 0, func(h *rollout.Host) { h.Action, h.Applied = drift.Repair, "new" }),
			"new", 1, rollout.ReasonStopped, 5*time.Hour + 55*time.Minute + 55*time.Second,
		},
		"outside the window": {
			with(func(p *rollout.Policy) {
				p.Windows = []rollout.Window{{Window: window.Window{Start: "0 9 * * *", Duration: time.Hour}}}
			}),
			newDriftedHosts(3), "new", 0, rollout.ReasonWindow, 5*time.Hour + 55*time.Minute + 55*time.Second,
		},
		"inside the window": {
			with(func(p *rollout.Policy) {
				p.Windows = []rollout.Window{{Window: window.Window{Start: "0 3 * * *", Duration: time.Hour}}}
			}),
			first, "new", 3, rollout.ReasonRolling, 55*time.Minute + 55*time.Second,
		},
		"an invalid window is closed": {
			with(func(p *rollout.Policy) {
				p.Windows = []rollout.Window{{Window: window.Window{Start: "at night", Duration: time.Hour}}}
			}),
			newDriftedHosts(3), "new", 0, rollout.ReasonWindow, 0,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			state, report := rollout.Decide(tc.policy, rollout.State{}, tc.hosts, tc.desired, startTime())
			if len(state.Permits) != tc.permits || report.Reason != tc.reason {
				t.Errorf("%d permits and %s (%s), want %d and %s", len(state.Permits), report.Reason, report.Message, tc.permits, tc.reason)
			}

			// An update of the operating system follows the same rules.
			for i := range tc.hosts {
				if tc.hosts = slices.Clone(tc.hosts); tc.hosts[i].Action == drift.Update {
					tc.hosts[i].Action = drift.OSUpdate
				}
			}

			other, _ := rollout.Decide(tc.policy, rollout.State{}, tc.hosts, tc.desired, startTime())
			for i := range other.Permits {
				if other.Permits[i].Action == drift.OSUpdate {
					other.Permits[i].Action = drift.Update
				}
			}

			if diff := cmp.Diff(state, other); diff != "" {
				t.Errorf("updates of operating systems differ:\n%s", diff)
			}

			if next := report.Next; tc.next == 0 != next.IsZero() || tc.next > 0 && !next.Equal(startTime().Add(tc.next)) {
				t.Errorf("next reconcile at %s, want after %s", next, tc.next)
			}
		})
	}
}

// Jitter spreads hosts over its duration. The same host always has the same delay.
func TestJitter(t *testing.T) {
	t.Parallel()

	const spread = time.Hour

	policy := rollout.Policy{MaxUnavailable: 1000, Canary: 1, Threshold: 1, Jitter: spread}
	hosts := changeHost(newDriftedHosts(200), 0, setApplied)
	state, at := rollout.State{}, startTime()

	var counts []int

	for range 5 {
		state, _ = rollout.Decide(policy, state, hosts, "new", at)
		again, _ := rollout.Decide(policy, rollout.State{Hash: "new", Started: startTime()}, hosts, "new", at)

		if len(again.Permits) != len(state.Permits) {
			t.Errorf("%d permits one by one, %d at once", len(state.Permits), len(again.Permits))
		}

		counts = append(counts, len(state.Permits))
		at = at.Add(spread / 4)
	}

	if counts[0] > 10 || counts[2] < 50 || counts[2] > 150 || counts[4] != 199 {
		t.Errorf("permits in each interval: %v", counts)
	}
}

// A stop persists when the host that caused it recovers. It ends with another configuration or when
// the fleet is resumed.
func TestStopStays(t *testing.T) {
	t.Parallel()

	policy := rollout.Policy{MaxUnavailable: 3, Threshold: 1}
	hosts := changeHost(newDriftedHosts(4), 2, func(h *rollout.Host) { h.Refused, h.RefusedAt = "new", startTime() })

	state, report := rollout.Decide(policy, rollout.State{}, hosts, "new", startTime())
	if !report.Stopped || !strings.Contains(state.StoppedReason, "h0002") || len(state.Permits) != 0 {
		t.Fatalf("%+v %+v", state, report)
	}

	without, again := rollout.Decide(policy, state, newDriftedHosts(2), "new", startTime().Add(time.Minute))
	if again.Stopped || again.Reason != rollout.ReasonStopped || len(without.Permits) != 0 {
		t.Errorf("without the host: %+v %+v", without, again)
	}

	if other, _ := rollout.Decide(policy, state, hosts, "newer", startTime().Add(time.Minute)); len(other.Permits) != 3 || other.StoppedHash != "" {
		t.Errorf("another configuration: %+v", other)
	}

	// Times have whole seconds, so a resume may have the same second as the stop.
	policy.ResumedAt = startTime()
	if resumed, _ := rollout.Decide(policy, state, hosts, "new", startTime()); len(resumed.Permits) != 3 || resumed.StoppedHash != "" {
		t.Errorf("resumed in the second of its stop: %+v", resumed)
	}

	policy.ResumedAt = startTime().Add(time.Minute)
	if resumed, _ := rollout.Decide(policy, state, hosts, "new", policy.ResumedAt); len(resumed.Permits) != 3 || resumed.StoppedHash != "" {
		t.Errorf("resumed: %+v", resumed)
	}
}

// A permit stays in flight until its host has used it up, even if the host needs another action
// meanwhile.
func TestPermitsAreUsedOnce(t *testing.T) {
	t.Parallel()

	policy := rollout.Policy{MaxUnavailable: 1, Threshold: 9}
	hosts := newDriftedHosts(2)

	state, _ := rollout.Decide(policy, rollout.State{}, hosts, "new", startTime())
	if len(state.Permits) != 1 || state.Permits[0].Number != 1 || state.Permits[0].Hash != "new" {
		t.Fatalf("%+v", state)
	}

	i := slices.IndexFunc(hosts, func(h rollout.Host) bool { return h.Name == state.Permits[0].Host })
	steps := []struct {
		what   string
		change func(*rollout.Host)
		number int64
	}{
		{"the push starts", func(h *rollout.Host) { h.Pushing = true }, 1},
		{"the permit is recorded during the push", func(h *rollout.Host) { h.LastPermit = 1 }, 1},
		{"the host has no drift", func(h *rollout.Host) { h.Action, h.Applied = drift.Nothing, "new" }, 1},
		{"the host is deleted during the push", func(h *rollout.Host) { h.Deleting = true }, 1},
		{"the push ends", func(h *rollout.Host) { h.Pushing = false }, 2},
	}

	for _, step := range steps {
		step.change(&hosts[i])

		state, _ = rollout.Decide(policy, state, hosts, "new", startTime())
		if len(state.Permits) != 1 || state.Permits[0].Number != step.number {
			t.Errorf("%s: permits %+v, want number %d", step.what, state.Permits, step.number)
		}
	}

	state, _ = rollout.Decide(policy, state, hosts[:0], "new", startTime())
	if len(state.Permits) != 0 {
		t.Errorf("permits of deleted hosts: %+v", state.Permits)
	}
}

func TestHostOrderDoesNotMatter(t *testing.T) {
	t.Parallel()

	policy := rollout.Policy{MaxUnavailable: 4, Threshold: 1}
	hosts := newDriftedHosts(20)
	want, _ := rollout.Decide(policy, rollout.State{}, hosts, "new", startTime())

	rand.New(rand.NewPCG(1, 2)).Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })

	got, _ := rollout.Decide(policy, rollout.State{}, hosts, "new", startTime())
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
