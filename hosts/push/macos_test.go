// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package push_test

import (
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hosts/plan/mac"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/sim/machost"
)

// updateRunner runs steps of a macOS update on a Mac, with a new connection when needed.
type updateRunner struct {
	t        *testing.T
	host     *machost.Host
	target   ssh.Target
	password string
}

// runStep returns the output of a step after the version.
func (a updateRunner) runStep(step, attempt string) string {
	a.t.Helper()

	conn, err := ssh.New(ssh.Options{}).Dial(a.t.Context(), a.target)
	if err != nil {
		return "away"
	}
	defer conn.Close()

	part := mac.NewOSStep(mac.OSStepParams{
		Step: step, Version: "15.3.1", Label: "macOS Sequoia 15.3.1-24D60", Attempt: attempt, User: "m1", Password: log.NewSecret(a.password),
	})

	out, err := conn.Run(a.t.Context(), ssh.Script{Label: part.Label, Input: strings.NewReader(part.Input()), Timeout: time.Minute})
	if err != nil {
		return "away"
	}

	return strings.TrimSpace(out.Stdout)
}

// waitForOutput repeats a step until the output contains a text.
func (a updateRunner) waitForOutput(step, attempt, want string) string {
	a.t.Helper()

	output := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if output = a.runStep(step, attempt); strings.Contains(output, want) {
			return output
		}
	}

	a.t.Fatalf("the output is %q, want it to contain %q", output, want)

	return ""
}

// An update is found, started, followed across the restart, and installed. The output of a step
// names the reason of each failure.
func TestMacOSUpdate(t *testing.T) {
	t.Parallel()

	host, target := startHost(t, machost.Options{Name: "h"})
	a := updateRunner{t: t, host: host, target: target, password: userPassword}

	set := func(offers ...string) {
		if err := host.SetMacOS("15.2", offers...); err != nil {
			t.Fatal(err)
		}
	}

	set("15.3", "15.3.1", "15.4")

	for _, c := range []struct{ step, want string }{
		{"version", "version 15.2"},
		{"offer", "version 15.2\noffered macOS Sequoia 15.3.1-24D60"},
	} {
		if got := a.runStep(c.step, ""); got != c.want {
			t.Errorf("%s: output %q, want %q", c.step, got, c.want)
		}
	}

	set("15.3", "15.4")

	if got := a.runStep("offer", ""); !strings.Contains(got, "failed UpdateNotOffered Apple does not offer macOS 15.3.1 to this Mac; offered: 15.3 15.4") {
		t.Errorf("output %q", got)
	}

	for i, c := range []struct {
		fault  machost.UpdateFault
		offers []string
		wrong  bool
		want   string
	}{
		{machost.UpdateFaultNone, []string{"15.4"}, false, "failed UpdateNotOffered macOS Sequoia 15.3.1-24D60: No such update"},
		{machost.UpdateDiskFull, []string{"15.3.1"}, false, "failed NotEnoughDisk Not enough free disk space"},
		{machost.UpdateDownloadFails, []string{"15.3.1"}, false, "failed DownloadFailed Failed to download"},
		{machost.UpdateNotOwner, []string{"15.3.1"}, false, "failed VolumeOwnerRefused Failed to authenticate"},
		{machost.UpdateFaultNone, []string{"15.3.1"}, true, "failed VolumeOwnerRefused Failed to authenticate"},
		{machost.UpdateKeepsVersion, []string{"15.3.1"}, false, "failed VersionUnchanged the host has restarted but still has macOS 15.2"},
		{machost.UpdateDownloadHangs, []string{"15.3.1"}, false, "running Downloading: 37.12%"},
	} {
		set(c.offers...)

		if err := host.SetUpdateFault(c.fault); err != nil {
			t.Fatal(err)
		}

		with := a
		if c.wrong {
			with.password = "another"
		}

		with.waitForOutput("install", string(rune('a'+i)), c.want)
	}

	// Canceling stops an update that hangs, and no other process.
	if got := a.runStep("cancel", "g"); !strings.Contains(got, "failed UpdateTimedOut the update was stopped because its time was up: ") {
		t.Errorf("output %q", got)
	}

	for _, process := range listProcesses(t, host) {
		if strings.Contains(process, "softwareupdate") {
			t.Errorf("the canceled update still runs: %s", process)
		}
	}

	if err := host.SetUpdateFault(machost.UpdateServerUnreachable); err != nil {
		t.Fatal(err)
	}

	if got := a.runStep("offer", ""); !strings.Contains(got, "failed UpdateServersUnreachable") {
		t.Errorf("output %q", got)
	}

	if err := host.SetUpdateFault(machost.UpdateFaultNone); err != nil {
		t.Fatal(err)
	}

	a.waitForOutput("install", "z", "version 15.3.1")

	begun := 0

	for _, call := range host.Calls() {
		if strings.Contains(call, userPassword) {
			t.Errorf("a call shows the password: %s", call)
		}

		if strings.HasPrefix(call, "softwareupdate --install") {
			begun++
		}
	}

	if begun != 8 {
		t.Errorf("softwareupdate ran %d times, want once for each attempt", begun)
	}

	if unknown := host.UnknownCalls(); len(unknown) > 0 {
		t.Errorf("unknown calls: %q", unknown)
	}
}
