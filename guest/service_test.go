// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "github.com/hyperfleet/hyperfleet/api/guest"
)

const runScript = "/opt/actions-runner/run.sh"

// Parts of runners that behave as the real one does.
const (
	listens   = `echo "2026-01-01 00:00:00Z: Listening for Jobs"; `
	runs      = `sh "$ACTIONS_RUNNER_HOOK_JOB_STARTED"; echo "2026-01-01 00:00:00Z: Running job: build"; `
	completes = `echo "2026-01-01 00:00:00Z: Job build completed with result: Succeeded"; `
	// waits until it is told to stop, as the listener does.
	waits = `trap 'echo Exiting...; exit 0' INT; while :; do sleep 0.02; done; `
	// stubborn does not stop when told.
	stubborn = `trap '' INT; while :; do sleep 0.02; done; `
)

// TestEndOfAMachine has one case for each way in which a machine ends.
func TestEndOfAMachine(t *testing.T) {
	t.Parallel()

	runEndings(t, map[string]ending{
		"job done": {
			runner: listens + runs + completes, phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: Succeeded", result: "success",
			phases: "Started Configuring Listening Running Finished",
		},
		"job done, although the runner exits with an error": {
			runner: listens + runs + completes + "exit 1", phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
		},
		"job failed: the machine has done its work": {
			runner: listens + runs + `echo "Job build completed with result: Failed"`,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: Failed", result: "failure",
		},
		"job has issues": {
			runner: listens + runs + `echo "Job build completed with result: SucceededWithIssues"`,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: SucceededWithIssues", result: "success",
		},
		"job is cancelled": {
			runner: listens + runs + `echo "Job build completed with result: Canceled"`,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: Canceled", result: "cancelled",
		},
		"job is skipped": {
			runner: listens + runs + `echo "Job build completed with result: Skipped"`,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job build: Skipped", result: "skipped",
		},
		"the runner hangs after its job": {
			runner: listens + runs + completes + stubborn,
			fire:   []time.Duration{2 * time.Minute, grace},
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
		},
		"no job comes": {
			runner: listens + waits, change: withTimeouts,
			after: api.PhaseListening, fire: []time.Duration{idle},
			phase: api.PhaseFinished, reason: api.ReasonIdleTimeout, message: "5m0s", phases: "Started Configuring Listening Finished",
		},
		"the runner never gets online": {
			runner: waits, change: withTimeouts,
			fire:  []time.Duration{idle},
			phase: api.PhaseFinished, reason: api.ReasonIdleTimeout,
		},
		"a job that takes too long is cancelled": {
			runner: `trap 'echo "Job build completed with result: Canceled"; exit 0' INT; ` + listens + runs + "while :; do sleep 0.02; done",
			change: withTimeouts,
			after:  api.PhaseRunning, fire: []time.Duration{jobLimit},
			phase: api.PhaseFailed, reason: api.ReasonJobTimeout, message: "30m0s", phases: "Started Configuring Listening Running Failed",
		},
		"a job that does not stop is killed": {
			runner: listens + runs + stubborn, change: withTimeouts,
			after: api.PhaseRunning, fire: []time.Duration{jobLimit, grace},
			phase: api.PhaseFailed, reason: api.ReasonJobTimeout, message: "more than",
		},
		"told to stop while idle": {
			runner: listens + waits,
			after:  api.PhaseListening, stop: true,
			phase: api.PhaseFinished, reason: api.ReasonTerminated, message: "was stopped",
		},
		"told to stop in a job": {
			runner: listens + runs + stubborn,
			after:  api.PhaseRunning, stop: true, fire: []time.Duration{grace},
			phase: api.PhaseFinished, reason: api.ReasonTerminated, message: "was stopped",
		},
		"credential expired": {
			runner: "echo must not run; touch ran",
			change: func(m *machine) { at := m.clock.Now(); m.cfg.ExpiresAt = &at },
			phase:  api.PhaseFailed, reason: api.ReasonCredentialExpired, message: "2026-01-02T03:04:05Z", phases: "Started Failed",
		},
		"attestation wanted of an image without an agent": {
			change: func(m *machine) { m.cfg.SPIFFE = spiffe() },
			phase:  api.PhaseFailed, reason: api.ReasonAttestationUnavailable, message: "does not exist",
		},
		"registration deleted": {
			runner: `echo "The runner registration has been deleted from the server, please re-configure." >&2; exit 1`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "has been deleted",
		},
		"registration deleted, as run.sh tells it": {
			runner: `echo "Runner listener exit with terminated error, stop the service, no retry needed."; exit 0`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "could not connect",
		},
		"session conflict": {
			runner: "exit 5", phase: api.PhaseFailed, reason: api.ReasonRegistrationError, message: "another runner is connected as ci-1",
		},
		"session conflict, as run.sh tells it": {
			runner: `echo "Runner listener exit with Session Conflict error, stop the service, no retry needed."; exit 0`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "another runner",
		},
		"the runner is too old": {
			runner: "exit 7", phase: api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "install a newer one",
		},
		"the runner ends idle": {
			runner: listens + "exit 0", phase: api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "without a job",
		},
		"the runner dies in the job": {
			runner: listens + runs + `echo "out of memory: token ` + jitBlob + `"; kill -9 $$`,
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "during job build: ",
		},
		"a retryable error passes": {
			runner: `[ -e tried ] || { touch tried; exit 2; }; ` + listens + runs + completes,
			fire:   []time.Duration{restart},
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "Succeeded", result: "success",
		},
		"an update is waited for": {
			runner: `[ -e tried ] || { touch tried; exit 4; }; ` + listens + runs + completes,
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
	}, githubMachine)
}

// githubMachine is one with what an earlier runner and job have left.
func githubMachine(t *testing.T, script string) *machine {
	t.Helper()

	m := newMachine(t)
	m.write(t, runScript, script)
	m.write(t, "/opt/actions-runner/.credentials", "left by the runner")
	m.write(t, "/tmp/runner-work/left", "by the job")

	return m
}

// TestCredentialsReachTheRunnerByEnvironment looks at what the runner is given.
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
			m.write(t, runScript, record+listens+runs+completes)
			m.write(t, "/opt/actions-runner/config.sh", record)

			if got := m.end(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
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
				m.gone(t, "/opt/actions-runner/config.sh.argv")

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
		"refused at once":  {`echo "Http response code: NotFound from 'POST https://x' ` + runnerToken + `" >&2; exit 1`, 0, api.ReasonRegistrationError, "NotFound"},
		"passes in time":   {`[ -e b ] && exit 0; [ -e a ] && touch b; touch a; echo "no such host"; exit 1`, 2, api.ReasonJobDone, "Succeeded"},
		"stays in trouble": {`echo "no such host"; exit 1`, 2, api.ReasonRegistrationError, "no such host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := newMachine(t)
			m.cfg.JITConfig, m.cfg.RunnerToken, m.cfg.RegistrationURL = "", runnerToken, "https://github.com/o"
			m.write(t, runScript, listens+runs+completes)
			m.write(t, "/opt/actions-runner/config.sh", tc.script)

			result := m.start(t, t.Context())

			for range tc.pauses {
				m.clock.fire(t, restart)
			}

			if got := m.end(t, result); got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("%+v\n%s", got, m.log)
			}
		})
	}
}

// TestNothingOfARunnerSurvives: processes that a job leaves behind end with the runner.
func TestNothingOfARunnerSurvives(t *testing.T) {
	t.Parallel()

	m := newMachine(t)
	m.write(t, runScript, listens+runs+`(while :; do date +%N > beat; sleep 0.02; done) >/dev/null 2>&1 & while [ ! -e beat ]; do sleep 0.02; done; `+completes)

	if got := m.end(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
		t.Fatalf("%+v\n%s", got, m.log)
	}

	const beat = "/opt/actions-runner/beat"

	if err := os.Remove(m.path(beat)); err != nil {
		t.Fatal(err)
	}

	time.Sleep(200 * time.Millisecond) // ten beats
	m.gone(t, beat)
}
