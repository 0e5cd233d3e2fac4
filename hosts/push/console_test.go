// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/mac"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/sim/machost"
)

// A Mac runs machines in the console session of its user. If the session is lost, its machines are
// lost. The next probe detects that and the next push restores the session. A restart of the host
// restores it, too.
func TestConsoleSession(t *testing.T) {
	t.Parallel()

	host, target := startHost(t, machost.Options{Name: "h"})
	p := newMachinePlan(t, "1")
	conn := dialHost(t, target)

	if result := push.Apply(t.Context(), conn, p, p.FirstBootSteps(), push.Options{}); result.Err != nil {
		t.Fatal(result.Err)
	}

	if got := host.ReadFile("/sim/run/session"); got != "m1\n" {
		t.Fatalf("user of the console session: %q", got)
	}

	if err := host.StartMachine(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}

	// A process of the system session or of an SSH session can't start a machine.
	if out, err := host.Exec(t.Context(), "/sim/bin/vz"); err == nil || !strings.Contains(out, "Failed to get current host key") {
		t.Errorf("a machine started outside of the session: %v", err)
	}

	// The machine survives a restart of its kubelet and is not a child of the next kubelet.
	next := newMachinePlan(t, "2")

	changed := next.DriftSteps("tart-kubelet-install", "launchd")
	if result := push.Apply(t.Context(), conn, next, changed, push.Options{}); result.Err != nil {
		t.Fatal(result.Err)
	}

	if _, ok := host.Machines(t.Context())["one"]; !ok {
		t.Error("the machine was lost with a new kubelet")
	}

	if err := host.Logout(t.Context()); err != nil {
		t.Fatal(err)
	}

	if left := host.Machines(t.Context()); len(left) != 0 {
		t.Errorf("machines %v run without a session", left)
	}

	states, err := push.Probe(t.Context(), conn, next, push.Options{})
	lost := next.LostParts(must(t, states, err))

	if !slices.Contains(lost, "console") || !slices.Contains(lost, "launchd") {
		t.Fatalf("lost parts: %v", lost)
	}

	if result := push.Apply(t.Context(), conn, next, next.DriftSteps(lost...), push.Options{}); result.Err != nil {
		t.Fatal(result.Err)
	}

	if err := host.StartMachine(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}

	for _, process := range listProcesses(t, host) {
		if strings.Contains(process, userPassword) {
			t.Errorf("a process shows the password: %s", process)
		}
	}

	if unknown := host.UnknownCalls(); len(unknown) > 0 {
		t.Errorf("unknown calls: %q", unknown)
	}
}

// newMachinePlan returns the part of a Mac's plan that runs machines.
func newMachinePlan(t *testing.T, version string) plan.Plan {
	t.Helper()

	all, err := mac.Render(newMacConfig(t, version))
	all = must(t, all, err)

	var parts []plan.Part

	labels := []string{"console", "tart", "kubeconfig", "tart-kubelet-install", "launchd-plist", "launchd"}
	for _, label := range labels {
		part, _ := all.FindPart(label)
		part.Reapplies = slices.DeleteFunc(slices.Clone(part.Reapplies), func(other string) bool { return !slices.Contains(labels, other) })
		parts = append(parts, part)
	}

	out, err := plan.New(parts...)

	return must(t, out, err)
}

func listProcesses(t *testing.T, host *machost.Host) []string {
	t.Helper()

	all, err := host.Processes(t.Context())

	return must(t, all, err)
}

// If the user can't be logged in, the error names the cause and the fix.
func TestNoConsoleSession(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct{ password, before, wantText string }{
		"wrong password": {"wrong", "true", "m1 is not logged in at the console"},
		"FileVault":      {userPassword, "touch /sim/filevault", "turn FileVault off with fdesetup disable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			host, target := startHost(t, machost.Options{Name: "h"})
			if _, err := host.Exec(t.Context(), tc.before); err != nil {
				t.Fatal(err)
			}

			cfg := newMacConfig(t, "1")
			cfg.UserPassword = log.NewSecret(tc.password)
			p, err := mac.Render(cfg)
			p = must(t, p, err)

			console, _ := p.FindPart("console")
			console.Reapplies = nil
			alone, err := plan.New(console)

			alone = must(t, alone, err)

			result := push.Apply(t.Context(), dialHost(t, target), alone, alone.FirstBootSteps(), push.Options{})
			if result.Err == nil || !strings.Contains(result.Err.Error(), tc.wantText) {
				t.Errorf("%v, want %q", result.Err, tc.wantText)
			}
		})
	}
}
