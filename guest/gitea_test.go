// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	api "github.com/hyperfleet/hyperfleet/api/guest"
)

const (
	forgejoRunner = "/usr/bin/forgejo-runner"
	actRunner     = "/usr/bin/act_runner"
	runnerUUID    = "0190a5fc-0000-4000-8000-00000000f00d"
)

// Lines as the real programs print them: forgejo-runner 13 and gitea-runner 3.
const (
	fjTime     = `time="2026-01-02T03:04:05Z" level=info msg=`
	fjDeclares = `echo '` + fjTime + `"Starting job"'
echo '` + fjTime + `"runner: ci-1, with version: v13.0.0, with labels: [linux docker], declared successfully"'
echo '` + fjTime + `"single task poller launched"'
`
	fjRuns = `echo '` + fjTime + `"single task poller successfully fetched one task from https://git.example"'
echo '` + fjTime + `"task 4711 repo is acme/shop https://data.forgejo.org https://git.example"'
`
	fjLeaves = `echo '` + fjTime + `"single task poller is shutting down"'
`
	gtDeclares = `echo '` + fjTime + `"Starting runner daemon"'
echo '` + fjTime + `"runner: ci-1, with version: v3.3.0, with labels: [linux docker], declare successfully"'
`
	gtRuns = `echo '` + fjTime + `"task 4711 repo is acme/shop https://github.com https://git.example"'
`
	gtUnknown = `echo 'time="2026-01-02T03:04:05Z" level=error msg="fail to invoke Declare" error="unauthenticated: unregistered runner"'; exit 1
`
)

func newGiteaMachine(t *testing.T, platform, program, script string) *machine {
	t.Helper()

	m := newMachine(t)
	m.cfg.Platform, m.cfg.JITConfig, m.cfg.RunnerToken, m.cfg.RegistrationURL = platform, runnerUUID, runnerToken, "https://git.example"
	m.cfg.Labels = []string{"linux", "docker"}

	if platform == "forgejo-actions" {
		m.cfg.JobID = jobUUID
	}

	m.write(t, program, "#!/bin/sh\n"+script+"\n")

	return m
}

func newForgejoMachine(t *testing.T, script string) *machine {
	t.Helper()

	return newGiteaMachine(t, "forgejo-actions", forgejoRunner, script)
}

func newActMachine(t *testing.T, script string) *machine {
	t.Helper()

	return newGiteaMachine(t, "gitea-actions", actRunner, script)
}

// TestEndOfForgejoAndGiteaMachines has one case for each result that the runner programs report.
func TestEndOfForgejoAndGiteaMachines(t *testing.T) {
	t.Parallel()

	const phases = "Started Configuring Listening Running Finished"

	for name, tc := range map[string]struct {
		machine                  func(*testing.T, string) *machine
		script                   string
		phase                    api.Phase
		reason, message, through string
	}{
		"Forgejo's job":             {newForgejoMachine, fjDeclares + fjRuns + fjLeaves, api.PhaseFinished, api.ReasonJobDone, "4711 of acme/shop: finished", phases},
		"Gitea's job":               {newActMachine, gtDeclares + gtRuns, api.PhaseFinished, api.ReasonJobDone, "4711 of acme/shop: finished", phases},
		"a crash during the job":    {newForgejoMachine, fjDeclares + fjRuns + "exit 3", api.PhaseFailed, api.ReasonRunnerFailed, "during job", ""},
		"a token that is not known": {newActMachine, gtUnknown, api.PhaseFailed, api.ReasonRegistrationError, "", ""},
		"a server that is not there": {
			newForgejoMachine, `echo 'level=error msg="fail to invoke Declare" error="unavailable: dial tcp: connection refused"'; exit 1`,
			api.PhaseFailed, api.ReasonRegistrationError, "connection refused", "",
		},
		"no job": {newActMachine, gtDeclares + "exit 0", api.PhaseFailed, api.ReasonRunnerFailed, "without a job", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := tc.machine(t, tc.script)

			got := m.waitForEnd(t, m.start(t, t.Context()))
			if got.Phase != tc.phase || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) || got.Result != "" {
				t.Errorf("ended with %+v, want %s, %s, %q\n%s", got, tc.phase, tc.reason, tc.message, m.log)
			}

			if tc.through != "" && m.listPhases() != tc.through {
				t.Errorf("phases %q, want %q", m.listPhases(), tc.through)
			}
		})
	}
}

// TestInputOfForgejoAndGiteaRunners: the runner gets its token in a file that is deleted afterwards.
func TestInputOfForgejoAndGiteaRunners(t *testing.T) {
	t.Parallel()

	const record = `d="$(dirname "$0")"; printf '%s\n' "$@" > "$d/argv"; env > "$d/env"; `

	t.Run("forgejo", func(t *testing.T) {
		t.Parallel()

		m := newForgejoMachine(t, record+`cp "$(dirname "$0")/../../opt/hyperfleet/runner-token" "$d/token"; `+fjDeclares+fjRuns)
		m.waitForEnd(t, m.start(t, t.Context()))

		want := []string{
			"one-job", "--url", "https://git.example", "--uuid", runnerUUID, "--token-url", "file:ROOT/opt/hyperfleet/runner-token",
			"--handle", jobUUID, "--wait", "--label", "linux:host", "--label", "docker:host",
		}
		got := strings.Split(strings.ReplaceAll(strings.TrimSpace(m.read(t, "/usr/bin/argv")), m.root, "ROOT"), "\n")

		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("arguments (-want +got):\n%s", diff)
		}

		if m.read(t, "/usr/bin/token") != runnerToken || strings.Contains(m.read(t, "/usr/bin/env"), runnerToken) {
			t.Error("the token is not in its file, or is in the environment")
		}

		if _, err := os.Stat(m.path("/opt/hyperfleet/runner-token")); !os.IsNotExist(err) {
			t.Errorf("the token is left in the machine: %v", err)
		}
	})

	t.Run("gitea", func(t *testing.T) {
		t.Parallel()

		m := newActMachine(t, record+`cp .runner "$d/runner"; `+gtDeclares+gtRuns)
		m.waitForEnd(t, m.start(t, t.Context()))

		var got map[string]any
		if err := json.Unmarshal([]byte(m.read(t, "/usr/bin/runner")), &got); err != nil {
			t.Fatal(err)
		}

		want := map[string]any{
			"uuid": runnerUUID, "token": runnerToken, "name": "ci-1", "address": "https://git.example", "ephemeral": true,
			"labels": []any{"linux:host", "docker:host"},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("settings (-want +got):\n%s", diff)
		}

		if args := strings.TrimSpace(m.read(t, "/usr/bin/argv")); args != "daemon" {
			t.Errorf("arguments %q", args)
		}

		if _, err := os.Stat(m.path("/tmp/runner-work/.runner")); !os.IsNotExist(err) {
			t.Errorf("the token is left in the machine: %v", err)
		}
	})
}
