// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/machost"
)

const (
	egress  = "10.32.0.0/16"
	another = "10.64.0.0/16"
)

const (
	simulator = "simulator"
	openssh   = "openssh"
)

// Hosts of both kinds go through their lifecycle, one behind the simulator's SSH server and one
// behind OpenSSH. TestSoakLifeOfAHost swaps the servers.
func TestHostLifecycle(t *testing.T) {
	t.Parallel()
	testLifecycles(t, map[machost.System]string{machost.Mac: simulator, machost.Linux: openssh})
}

func TestSoakLifeOfAHost(t *testing.T) {
	t.Parallel()
	property.Soak(t)
	testLifecycles(t, map[machost.System]string{machost.Mac: openssh, machost.Linux: simulator})
}

func testLifecycles(t *testing.T, doors map[machost.System]string) {
	t.Helper()

	for _, s := range newSystems() {
		door := doors[s.name]

		t.Run(string(s.name)+" behind "+door, func(t *testing.T) {
			t.Parallel()

			host, target := startHost(t, machost.Options{Name: "h", System: s.name})

			if door == openssh {
				sshd, err := host.StartOpenSSH(t.Context())
				if err != nil {
					t.Fatal(err)
				}

				t.Cleanup(func() { _ = sshd.Close() })

				target.Address, target.User, target.HostKey = sshd.Address(), sshd.User, sshd.HostKey
			}

			l := hostLifecycle{system: s, t: t, host: host, conn: dialHost(t, target)}
			l.firstBoot()
			l.testChanges()
			l.testLostParts()
			l.testCrash()
		})
	}
}

type hostLifecycle struct {
	system

	t    *testing.T
	host *machost.Host
	conn *ssh.Conn
	has  plan.Plan
}

// firstBoot applies all parts, while a goroutine watches the processes of the host.
func (l *hostLifecycle) firstBoot() {
	l.t.Helper()
	l.has = l.render(l.t, "1", egress, false)

	var watching sync.WaitGroup

	ctx, cancel := context.WithCancel(l.t.Context())
	seen := map[string]bool{}

	watching.Go(func() {
		// Often enough to see most scripts, and rarely enough not to slow them down.
		for ; ctx.Err() == nil; time.Sleep(time.Second) {
			processes, _ := l.host.Processes(ctx)
			for _, process := range processes {
				seen[process] = true
			}
		}
	})

	result := push.Apply(l.t.Context(), l.conn, l.has, l.has.FirstBootSteps(), push.Options{})

	cancel()
	watching.Wait()

	if result.Err != nil {
		l.t.Fatal(result.Err)
	}

	if got, want := len(result.Labels(push.Applied)), len(l.has.Parts()); got != want || len(result.LostParts) > 0 {
		l.t.Errorf("applied %d parts of %d, lost %q", got, want, result.LostParts)
	}

	if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(s string) bool { return strings.Contains(s, "hyperfleet-script") }) {
		l.t.Error("the watcher of processes saw no script")
	}

	for _, secret := range []string{tailnetKey, kubeToken} {
		if strings.Contains(strings.Join(slices.Collect(maps.Keys(seen)), "\n"), secret) ||
			strings.Contains(strings.Join(l.host.Calls(), "\n"), secret) {
			l.t.Errorf("%s was an argument of a process", secret)
		}
	}

	if !strings.Contains(l.host.ReadFile(l.secretPath), kubeToken) {
		l.t.Error("the kubeconfig is missing")
	}

	if err := l.host.StartMachine(l.t.Context(), "one"); err != nil {
		l.t.Fatal(err)
	}
}

// applyDrift applies the drifted parts, and requires that the machine keeps running.
func (l *hostLifecycle) applyDrift(p plan.Plan, states map[string]plan.State) push.Result {
	l.t.Helper()

	before := l.host.Machines(l.t.Context())
	steps := p.DriftSteps(p.FindDrifted(l.has.Digests(), p.LostParts(states))...)
	result := push.Apply(l.t.Context(), l.conn, p, steps, push.Options{})

	if diff := cmp.Diff(before, l.host.Machines(l.t.Context())); diff != "" || before["one"] == "" {
		l.t.Errorf("machines changed during the push: %s", diff)
	}

	for _, part := range p.Parts() {
		if part.Schedule == plan.FirstBoot && !slices.Contains(result.Labels(push.Unchanged), part.Label) {
			l.t.Errorf("part %s of the first boot was applied again", part.Label)
		}
	}

	return result
}

func (l *hostLifecycle) testChanges() {
	l.t.Helper()

	next := l.render(l.t, "1", another, false)

	result := l.applyDrift(next, nil)
	if result.Err != nil || !slices.Contains(result.Labels(push.Applied), l.rules) ||
		slices.Contains(result.Labels(push.Applied), l.kubelet) {
		l.t.Errorf("changed rule: applied %q: %v", result.Labels(push.Applied), result.Err)
	}

	l.has = next
	next = l.render(l.t, "2", another, false)

	result = l.applyDrift(next, nil)
	if applied := result.Labels(push.Applied); result.Err != nil || slices.Contains(applied, l.rules) ||
		!slices.Contains(applied, l.kubelet) || !slices.Contains(applied, l.job) {
		l.t.Errorf("changed program: applied %q: %v", applied, result.Err)
	}

	l.has = next

	if result := l.applyDrift(next, nil); result.Err != nil || len(result.Labels(push.Applied)) > 0 {
		l.t.Errorf("no change: applied %q: %v", result.Labels(push.Applied), result.Err)
	}
}

func (l *hostLifecycle) testLostParts() {
	l.t.Helper()

	if _, err := l.host.Exec(l.t.Context(), l.removeFirewall); err != nil {
		l.t.Fatal(err)
	}

	states, err := push.Probe(l.t.Context(), l.conn, l.has, push.Options{})
	if err != nil {
		l.t.Fatal(err)
	}

	if lost := l.has.LostParts(states); !slices.Contains(lost, "firewall") {
		l.t.Errorf("lost parts %q", lost)
	}

	if result := l.applyDrift(l.has, states); result.Err != nil || len(result.LostParts) > 0 {
		l.t.Errorf("after the repair: lost %q: %v", result.LostParts, result.Err)
	}
}

// testCrash pushes a program that ends at once. The push fails although the program arrived completely, and
// the next push fixes it.
func (l *hostLifecycle) testCrash() {
	l.t.Helper()

	bad := l.render(l.t, "2", another, true)

	// On a slow host, the script may see none of the short-lived processes.
	result := l.applyDrift(bad, nil)
	if ssh.KindOf(result.Err) != ssh.Rejected || !slices.Contains(result.Labels(push.Failed), l.job) ||
		!strings.Contains(result.Err.Error(), "did not run") && !strings.Contains(result.Err.Error(), "did not restart") {
		l.t.Errorf("crashing program: failed %q: %v", result.Labels(push.Failed), result.Err)
	}

	l.has = bad
	if result := l.applyDrift(l.render(l.t, "3", another, false), nil); result.Err != nil {
		l.t.Error(result.Err)
	}
}
