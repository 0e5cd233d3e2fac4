// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
)

// Parts of scripts.
const (
	// waitForSignal waits until the script is stopped, as the real listener does.
	waitForSignal = `trap 'echo Exiting...; exit 0' INT; while :; do sleep 0.02; done; `
	// ignoreSignal does not stop after a signal.
	ignoreSignal = `trap '' INT; while :; do sleep 0.02; done; `
)

// TestEndOfMachine has one case for each way in which a machine can end.
// When the machine powers off, the files of its job are deleted, and its last report is written.
func TestPowerOffAfterCleanUp(t *testing.T) {
	t.Parallel()

	m := newGitHubMachine(t, printListening+printRunning+printCompleted)
	m.write(t, "/tmp/runner-work/left", "by the job")

	data, err := json.Marshal(m.cfg)
	if err != nil {
		t.Fatal(err)
	}

	m.write(t, api.ConfigPath, string(data))

	options, calls := m.options(), 0
	options.PowerOff = func(context.Context) error {
		calls++

		m.requireDeleted(t, "/tmp/runner-work")

		if status, err := os.ReadFile(m.path(api.StatusPath)); err != nil || !strings.Contains(string(status), string(api.ReasonJobDone)) {
			t.Errorf("the last report is %s: %v", status, err)
		}

		return nil
	}

	if got := guest.New(options).Run(t.Context()); got.Reason != api.ReasonJobDone || calls != 1 {
		t.Errorf("%+v, powered off %d times\n%s", got, calls, m.log)
	}
}

func TestEndOfMachine(t *testing.T) {
	t.Parallel()

	runEndings(t, map[string]endingCase{
		"job done": {
			runner: printListening + printRunning + printCompleted, phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: Succeeded", result: "success",
			phases: "Started Configuring Listening Running Finished",
		},
		"job done, although the runner exits with an error": {
			runner: printListening + printRunning + printCompleted + "exit 1", phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
		},
		"job failed: the machine has done its work": {
			runner: printListening + printRunning + `echo "Job build completed with result: Failed"`,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: Failed", result: "failure",
		},
		"job has issues": {
			runner: printListening + printRunning + `echo "Job build completed with result: SucceededWithIssues"`,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: SucceededWithIssues", result: "success",
		},
		"job is cancelled": {
			runner: printListening + printRunning + `echo "Job build completed with result: Canceled"`,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: Canceled", result: "cancelled",
		},
		"job is skipped": {
			runner: printListening + printRunning + `echo "Job build completed with result: Skipped"`,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: Skipped", result: "skipped",
		},
		"the runner hangs after its job": {
			runner: printListening + printRunning + printCompleted + ignoreSignal,
			fire:   []time.Duration{2 * time.Minute, grace},
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
		},
		"no job is assigned": {
			runner: printListening + waitForSignal, change: setTimeouts,
			after: api.PhaseListening, fire: []time.Duration{idle},
			phase: api.PhaseFinished, reason: api.ReasonIdleTimeout, message: "5m0s", phases: "Started Configuring Listening Finished",
		},
		"the runner never gets online": {
			runner: waitForSignal, change: setTimeouts,
			fire:  []time.Duration{idle},
			phase: api.PhaseFinished, reason: api.ReasonIdleTimeout,
		},
		"a job that exceeds its timeout is cancelled": {
			runner: `trap 'echo "Job build completed with result: Canceled"; exit 0' INT; ` + printListening + printRunning + "while :; do sleep 0.02; done",
			change: setTimeouts,
			after:  api.PhaseRunning, fire: []time.Duration{jobLimit},
			phase: api.PhaseFailed, reason: api.ReasonJobTimeout, message: "30m0s", phases: "Started Configuring Listening Running Failed",
		},
		"a job that does not stop is killed": {
			runner: printListening + printRunning + ignoreSignal, change: setTimeouts,
			after: api.PhaseRunning, fire: []time.Duration{jobLimit, grace},
			phase: api.PhaseFailed, reason: api.ReasonJobTimeout, message: "more than",
		},
		"stopped while idle": {
			runner: printListening + waitForSignal,
			after:  api.PhaseListening, stop: true,
			phase: api.PhaseFinished, reason: api.ReasonTerminated, message: "was stopped",
		},
		"stopped during a job": {
			runner: printListening + printRunning + ignoreSignal,
			after:  api.PhaseRunning, stop: true, fire: []time.Duration{6 * time.Second},
			phase: api.PhaseFinished, reason: api.ReasonTerminated, message: "was stopped",
		},
		"credential expired": {
			runner: `echo "The runner registration has been deleted from the server, please re-configure." >&2; exit 1`,
			change: func(m *machine) { at := m.clock.Now(); m.cfg.ExpiresAt = &at },
			phase:  api.PhaseFailed, reason: api.ReasonCredentialExpired, message: "2026-01-02T03:04:05Z", phases: "Started Configuring Failed",
		},
		"a clock that is a day ahead": {
			runner: printListening + printRunning + printCompleted,
			change: func(m *machine) { at := m.clock.Now().AddDate(0, 0, -1); m.cfg.ExpiresAt = &at },
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
		},
		"attestation is disabled": {
			runner: printListening + printRunning + printCompleted,
			change: func(m *machine) { m.cfg.SPIFFE = newSPIFFE(); m.cfg.SPIFFE.Enabled = false },
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
			phases: "Started Configuring Listening Running Finished",
		},
		"attestation without an agent in the image": {
			change: func(m *machine) { m.cfg.SPIFFE = newSPIFFE() },
			phase:  api.PhaseFailed, reason: api.ReasonAttestationUnavailable, message: "does not exist",
		},
		"registration deleted": {
			runner: `echo "The runner registration has been deleted from the server, please re-configure." >&2; exit 1`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "has been deleted",
		},
		"registration deleted, reported by run.sh": {
			runner: `echo "Runner listener exit with terminated error, stop the service, no retry needed."; exit 0`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "could not connect",
		},
		"session conflict": {
			runner: "exit 5", phase: api.PhaseFailed, reason: api.ReasonRegistrationError, message: "another runner is connected as ci-1",
		},
		"session conflict, reported by run.sh": {
			runner: `echo "Runner listener exit with Session Conflict error, stop the service, no retry needed."; exit 0`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "another runner",
		},
		"the runner is too old": {
			runner: "exit 7", phase: api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "install a newer one",
		},
		"the runner ends while idle": {
			runner: printListening + "exit 0", phase: api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "without a job",
		},
		"the runner dies in the job": {
			runner: printListening + printRunning + `echo "out of memory: token ` + jitBlob + `"; kill -9 $$`,
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "during job build: ",
		},
		"a retryable error passes": {
			runner: `[ -e tried ] || { touch tried; exit 2; }; ` + printListening + printRunning + printCompleted,
			fire:   []time.Duration{restart},
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
		},
		"an update is waited for": {
			runner: `[ -e tried ] || { touch tried; exit 4; }; ` + printListening + printRunning + printCompleted,
			fire:   []time.Duration{restart},
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
		},
		"a retryable error stays": {
			runner: `echo "An error occurred: no such host"; exit 2`,
			fire:   slices.Repeat([]time.Duration{restart}, 5),
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "no such host",
		},
		"run.sh restarts its listener for ever": {
			runner: "trap 'exit 0' INT; while :; do echo 'An error occurred: refused'; echo 'Restarting runner...'; sleep 0.02; done",
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "refused",
		},
		"the runner cannot be started": {
			change: func(m *machine) {
				_ = os.Remove(m.path(runScript))
				_ = os.WriteFile(m.path(runScript), []byte("no program"), 0o600)
			},
			runner: "x", phase: api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "start runner",
		},
		"no runner and nothing to download": {
			change: func(m *machine) { _ = os.Remove(m.path(runScript)) },
			phase:  api.PhaseFailed, reason: api.ReasonDownloadFailed, message: "/opt/actions-runner",
		},
		"no checksum": {
			change: func(m *machine) { _ = os.Remove(m.path(runScript)); m.cfg.Runner.DownloadURL = "http://127.0.0.1:1/x" },
			phase:  api.PhaseFailed, reason: api.ReasonDownloadFailed, message: "download_sha256 is missing",
		},
	}, newGitHubMachine)
}

// newGitHubMachine returns a machine with files of an earlier runner and job.
func newGitHubMachine(t *testing.T, script string) *machine {
	t.Helper()

	m := newMachine(t)
	m.write(t, runScript, script)
	m.write(t, "/opt/actions-runner/.credentials", "left by the runner")
	m.write(t, "/tmp/runner-work/left", "by the job")

	return m
}

// The work directory of the configuration is deleted.
func TestWorkDirIsDeleted(t *testing.T) {
	t.Parallel()

	m := newMachine(t)
	m.cfg.Runner.WorkDir = "/srv/work"
	m.write(t, runScript, printListening+printRunning+printCompleted)
	m.write(t, "/srv/work/left", "by the job")

	if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
		t.Errorf("%+v\n%s", got, m.log)
	}

	m.requireDeleted(t, "/srv/work")
}

// A machine attests before its runner starts, whatever its CI platform is. This image has no spire-agent.
func TestEveryPlatformAttests(t *testing.T) {
	t.Parallel()

	spiffe, err := json.Marshal(newSPIFFE())
	if err != nil {
		t.Fatal(err)
	}

	const gitea = `"method":"runner-token","runner_name":"a","jit_config":"` + runnerUUID + `","runner_token":"b","registration_url":"https://git.example",`

	for platform, text := range map[string]string{
		"github-actions": minimal, "gitlab-ci": gitlabMinimal, "generic": genericMinimal,
		"buildkite":       `"method":"runner-token","platform":"buildkite","runner_name":"a","runner_token":"b","job_id":"c"`,
		"forgejo-actions": gitea + `"platform":"forgejo-actions","job_id":"` + jobUUID + `"`,
		"gitea-actions":   gitea + `"platform":"gitea-actions"`,
	} {
		t.Run(platform, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.write(t, api.ConfigPath, `{`+text+`,"spiffe":`+string(spiffe)+`}`)

			if got := m.waitForEnd(t, m.startWithoutConfig(t, t.Context())); got.Reason != api.ReasonAttestationUnavailable {
				t.Errorf("ended with %s: %s; want a failed attestation", got.Reason, got.Message)
			}
		})
	}
}

// TestCredentialsReachTheRunnerByEnvironment checks the environment and the arguments of the runner.
func TestCredentialsReachTheRunnerByEnvironment(t *testing.T) {
	t.Parallel()

	const record = `printf '%s\n' "$@" > "$(basename "$0").argv"; env > "$(basename "$0").env"; `

	for name, tc := range map[string]struct {
		change  func(*api.Config)
		wantEnv string // in the file of the script
		argv    []string
	}{
		"jit": {
			func(*api.Config) {}, "run.sh.env ACTIONS_RUNNER_INPUT_JITCONFIG=" + jitBlob, nil,
		},
		"token": {
			func(c *api.Config) {
				c.JITConfig, c.RunnerToken, c.RegistrationURL, c.RunnerGroup = "", runnerToken, "https://github.com/o", "my group"
			},
			"config.sh.env ACTIONS_RUNNER_INPUT_TOKEN=" + runnerToken,
			[]string{
				"--unattended", "--ephemeral", "--disableupdate", "--replace", "--name", "ci-1", "--work", "ROOT/tmp/runner-work",
				"--url", "https://github.com/o", "--no-default-labels", "--labels", "self-hosted,linux", "--runnergroup", "my group",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			tc.change(&m.cfg)
			m.write(t, runScript, record+printListening+printRunning+printCompleted)
			m.write(t, "/opt/actions-runner/config.sh", record)

			if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
				t.Fatalf("%+v\n%s", got, m.log)
			}

			file, variable, _ := strings.Cut(tc.wantEnv, " ")
			if env := m.read(t, "/opt/actions-runner/"+file); !strings.Contains("\n"+env, "\n"+variable+"\n") {
				t.Errorf("%s is not in %s:\n%s", variable, file, env)
			}

			argv := m.read(t, runScript+".argv")
			if strings.TrimSpace(argv) != "" {
				t.Errorf("run.sh got arguments %q", argv)
			}

			if tc.argv == nil {
				m.requireDeleted(t, "/opt/actions-runner/config.sh.argv")

				return
			}

			got := strings.Split(strings.TrimSpace(strings.ReplaceAll(m.read(t, "/opt/actions-runner/config.sh.argv"), m.root, "ROOT")), "\n")
			if diff := cmp.Diff(tc.argv, got); diff != "" {
				t.Errorf("config.sh (-want +got):\n%s", diff)
			}

			if env := m.read(t, runScript+".env"); strings.Contains(env, runnerToken) {
				t.Error("the token reaches the runner that runs jobs")
			}
		})
	}
}

func TestRegistration(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		script  string
		pauses  int
		reason  string
		message string
	}{
		"rejected":        {`echo "Http response code: NotFound from 'POST https://x' ` + runnerToken + `" >&2; exit 1`, 0, api.ReasonRegistrationError, "NotFound"},
		"temporary error": {`[ -e b ] && exit 0; [ -e a ] && touch b; touch a; echo "no such host"; exit 1`, 2, api.ReasonJobDone, "Succeeded"},
		"permanent error": {`echo "no such host"; exit 1`, 2, api.ReasonRegistrationError, "no such host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.cfg.JITConfig, m.cfg.RunnerToken, m.cfg.RegistrationURL = "", runnerToken, "https://github.com/o"
			m.write(t, runScript, printListening+printRunning+printCompleted)
			m.write(t, "/opt/actions-runner/config.sh", tc.script)

			result := m.start(t, t.Context())

			for range tc.pauses {
				m.clock.waitAndFire(t, restart)
			}

			if got := m.waitForEnd(t, result); got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("%+v\n%s", got, m.log)
			}
		})
	}
}

// TestProcessesOfRunnerEnd: processes that a job leaves behind end with the runner.
func TestProcessesOfRunnerEnd(t *testing.T) {
	t.Parallel()

	m := newMachine(t)
	m.write(t, runScript, printListening+printRunning+`(while :; do date +%N > beat; sleep 0.02; done) >/dev/null 2>&1 & while [ ! -e beat ]; do sleep 0.02; done; `+printCompleted)

	if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
		t.Fatalf("%+v\n%s", got, m.log)
	}

	const beat = "/opt/actions-runner/beat"

	if err := os.Remove(m.path(beat)); err != nil {
		t.Fatal(err)
	}

	time.Sleep(200 * time.Millisecond) // the process writes the file every 20 ms
	m.requireDeleted(t, beat)
}

// TestOnlyMachinesPowerOff checks that the service powers the machine off, unless it runs in a folder.
func TestOnlyMachinesPowerOff(t *testing.T) {
	t.Parallel()

	for root, want := range map[string]bool{"/": true, t.TempDir(): false} {
		if got := guest.OptionsOfMachine(api.ConfigPath, root, slog.Default()).PowerOff != nil; got != want {
			t.Errorf("root %s: powers off %t, want %t", root, got, want)
		}
	}
}
