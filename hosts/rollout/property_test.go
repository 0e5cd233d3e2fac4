// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/rollout"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// fixture is a fleet whose hosts behave randomly. They accept a configuration, refuse it, are
// unreachable, lose parts, and see permits late.
type fixture struct {
	random *rand.Rand
	policy rollout.Policy
	state  rollout.State
	// seen are the permits as the hosts see them, which may be stale.
	seen  []rollout.Permit
	hosts []rollout.Host
	// works holds the permit under which each host is pushed to. It is 0 for none.
	works []int64
	now   time.Time
	hash  string
	// bad are configurations that hosts usually refuse.
	bad map[string]bool
}

// takeStep lets one host take one step. A push starts only under an unused permit.
func (w *fixture) takeStep(i int) {
	host := &w.hosts[i]

	switch {
	case w.works[i] == 0:
		for _, permit := range w.seen {
			if permit.Host == host.Name && permit.Number > host.LastPermit {
				if permit.Hash == w.hash && w.random.IntN(4) > 0 {
					w.works[i], host.Pushing, host.Applied = permit.Number, true, ""
				} else {
					host.LastPermit = permit.Number // released
				}
			}
		}
	case w.random.IntN(3) == 0:
		host.LastPermit, host.Pushing = w.works[i], false
		w.works[i] = 0
		w.finishPush(host)
	}
}

func (w *fixture) finishPush(host *rollout.Host) {
	switch chance := w.random.IntN(10); {
	case chance == 0:
		host.Unreachable, host.Action, host.NotBefore = true, drift.Update, w.now.Add(time.Minute)
	case w.bad[w.hash] && chance < 8:
		host.Refused, host.RefusedAt, host.Unreachable = w.hash, w.now, false
		host.Action, host.NotBefore = drift.Update, w.now.Add(time.Minute)
		host.Failed = w.random.IntN(3) == 0
	default:
		host.Applied, host.Refused, host.Unreachable, host.Failed = w.hash, "", false, false
		host.Action = drift.Nothing
	}
}

// setConfig sets a new configuration.
func (w *fixture) setConfig(hash string) {
	w.hash = hash
	for i := range w.hosts {
		if w.hosts[i].Applied != hash {
			w.hosts[i].Action, w.hosts[i].Failed = drift.Update, false
		}
	}
}

// checkInvariants returns an error if an invariant is violated.
func (w *fixture) checkInvariants(before rollout.State) error {
	limit := max(1, w.policy.MaxUnavailable)

	working, converged := 0, 0
	for i := range w.hosts {
		if w.works[i] != 0 {
			working++
		}

		if w.hosts[i].Applied == w.hash {
			converged++
		}
	}

	fresh, updates := map[int64]bool{}, 0
	for _, permit := range w.state.Permits {
		fresh[permit.Number] = permit.Number > before.LastPermit
		if permit.Action == drift.Update && fresh[permit.Number] {
			updates++
		}
	}

	switch {
	case len(w.state.Permits) > limit:
		return fmt.Errorf("%d permits, limit %d", len(w.state.Permits), limit)
	case working > limit:
		return fmt.Errorf("pushes to %d hosts, limit %d", working, limit)
	case w.policy.Paused && w.state.LastPermit != before.LastPermit:
		return errors.New("the paused fleet has a permit")
	case w.state.StoppedHash == w.hash && updates > 0:
		return errors.New("a permit for a stopped configuration")
	case converged < min(w.policy.Canary, len(w.hosts)) && updates > w.policy.Canary-converged:
		return fmt.Errorf("%d updates while %d of %d canaries have converged", updates, converged, w.policy.Canary)
	}

	for i := range w.hosts {
		for _, permit := range w.state.Permits {
			if permit.Host == w.hosts[i].Name && w.works[i] != 0 && permit.Number != w.works[i] {
				return fmt.Errorf("host %s is pushed to with permit %d, but has permit %d", permit.Host, w.works[i], permit.Number)
			}
		}
	}

	return nil
}

func newFixture(seed uint64) *fixture {
	random := rand.New(rand.NewPCG(seed, 1))
	hosts := newDriftedHosts(1 + random.IntN(30))

	return &fixture{
		random: random, hosts: hosts, works: make([]int64, len(hosts)), now: startTime(), hash: "new",
		bad: map[string]bool{"bad": true},
		policy: rollout.Policy{
			MaxUnavailable: 1 + random.IntN(6), Canary: random.IntN(4), Threshold: 1 + random.IntN(3),
			Jitter: time.Duration(random.IntN(2)) * 10 * time.Minute,
		},
	}
}

func (w *fixture) decide() error {
	before := w.state
	if w.random.IntN(2) == 0 {
		w.seen = before.Permits
	}

	w.state, _ = rollout.Decide(w.policy, w.state, w.hosts, w.hash, w.now)

	return w.checkInvariants(before)
}

// In all cases, no more hosts than allowed are in flight, canaries go first, and no update starts
// while the fleet is paused or the rollout is stopped. A good configuration reaches all hosts in
// the end.
func TestRolloutInvariants(t *testing.T) {
	t.Parallel()

	property.Check(t, "limits hold and good configurations reach all hosts", property.Options{}, prop.ForAll(func(seed uint64) (bool, error) {
		w := newFixture(seed)

		for step := range 300 {
			switch w.random.IntN(60) {
			case 0:
				w.policy.Paused = !w.policy.Paused
			case 1:
				w.setConfig([]string{"new", "bad", "newer"}[w.random.IntN(3)])
			case 2:
				w.policy.ResumedAt = w.now
			case 3, 4, 5: // one host takes a step
				w.hosts[w.random.IntN(len(w.hosts))].Unreachable = true
			}

			w.takeStep(w.random.IntN(len(w.hosts)))
			w.now = w.now.Add(10 * time.Second)

			if w.random.IntN(3) == 0 {
				if err := w.decide(); err != nil {
					return false, fmt.Errorf("step %d: %w", step, err)
				}
			}
		}

		err := w.converge()

		return err == nil, err
	}, gen.UInt64()))
}

// converge rolls out a configuration that no host refuses.
func (w *fixture) converge() error {
	w.policy.Paused = false
	w.setConfig("good")

	for range 5000 {
		for i := range w.hosts {
			w.takeStep(i)
		}

		w.now = w.now.Add(time.Minute)
		if err := w.decide(); err != nil {
			return err
		}

		if _, report := rollout.Decide(w.policy, w.state, w.hosts, w.hash, w.now); report.Converged == len(w.hosts) {
			return nil
		}
	}

	return fmt.Errorf("hosts have not converged: %+v", w.hosts)
}
