// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "github.com/hyperfleet/hyperfleet/api/guest"
)

const (
	gitlabRunner   = "/usr/bin/gitlab-runner"
	buildkiteAgent = "/usr/bin/buildkite-agent"
	jobUUID        = "0190a5fc-0000-4000-8000-000000000001"
)

// Lines as the real programs print them: gitlab-runner 19.4 with its colours, and
// buildkite-agent 3.137.
const (
	glStarts = `printf 'Runtime platform                                    \033[0;m  arch\033[0;m=amd64 os\033[0;m=linux\n'
printf 'Starting runner for https://gitlab.example with token glrt-x ... \033[0;m \n'
`
	glReceives = `printf 'Checking for jobs... received                     \033[0;m  correlation_id\033[0;m=01J job\033[0;m=4711 job_name\033[0;m=build it repo_url\033[0;m=https://gitlab.example/g/p.git\n'
`
	glSucceeds = `printf 'Job succeeded                                     \033[0;m  duration_s\033[0;m=1.5 job\033[0;m=4711 job-status\033[0;m=success\n'
`
	glFails = `printf '\033[0;33mWARNING: Job failed: exit status 3                \033[0;m  duration_s\033[0;33m\033[0;m=1.5 error\033[0;m=exit status 3 job\033[0;m=4711\n'
`
	glSystemFails = `printf '\033[31;1mERROR: Job failed (system failure): prepare environment: exit status 1\033[0;m  duration_s\033[0;m=1.5\n'
`
	glLeaves   = `printf 'This runner has processed its build limit, so now exiting\033[0;m \n'; exit 0`
	glPatient  = `trap 'exit 0' QUIT; while :; do sleep 0.02; done`
	bkTime     = `2026-01-02 03:04:05 `
	bkRegister = `echo '` + bkTime + `NOTICE Starting buildkite-agent v3.137.0 with PID: 7'
echo '` + bkTime + `INFO   Registering agent with Buildkite...'
echo '` + bkTime + `INFO   Successfully registered agent "ci-1" with tags [queue=default]'
echo '` + bkTime + `INFO   ci-1 Connecting to Buildkite...'
echo '` + bkTime + `INFO   ci-1 Attempting to acquire job ` + jobUUID + `...'
`
	bkStarts = `echo '` + bkTime + `INFO   ci-1 Starting job at https://buildkite.com/o/p/builds/1#` + jobUUID + `'
`
	bkFinishes = `echo '` + bkTime + `INFO   ci-1 Finished job at https://buildkite.com/o/p/builds/1#` + jobUUID + `'
echo '` + bkTime + `INFO   ci-1 Disconnecting...'
`
	bkCancels = `echo '` + bkTime + `INFO   ci-1 Canceling job ` + jobUUID + ` with a signal grace period of 9s (job cancelled on Buildkite)'
`
	bkRejects = `echo '` + bkTime + `ERROR  ci-1 Buildkite rejected the call to acquire the job: PUT https://agent.buildkite.com/v3/jobs/x/acquire: 422 Unprocessable Entity'
`
)

// Machines of the platforms.
func newGitLabMachine(t *testing.T, script string) *machine {
	t.Helper()

	m := newMachine(t)
	m.cfg.Platform, m.cfg.JITConfig, m.cfg.RunnerToken, m.cfg.RegistrationURL = "gitlab-ci", "", runnerToken, "https://gitlab.example"
	m.write(t, gitlabRunner, "#!/bin/sh\n"+script+"\n")

	return m
}

func newBuildkiteMachine(t *testing.T, script string) *machine {
	t.Helper()

	m := newMachine(t)
	m.cfg.Platform, m.cfg.JITConfig, m.cfg.RunnerToken, m.cfg.JobID = "buildkite", "", runnerToken, jobUUID
	m.cfg.Labels = []string{"queue=default", "os=linux"}
	m.write(t, buildkiteAgent, "#!/bin/sh\n"+script+"\n")

	return m
}

func newGenericMachine(t *testing.T, script string) *machine {
	t.Helper()

	m := newMachine(t)
	m.cfg.Platform, m.cfg.JITConfig, m.cfg.JobID = "generic", "", "job-7"
	m.cfg.Command = []string{"sh", "-c", script}

	return m
}

const (
	idle, glGrace   = 5 * time.Minute, time.Minute
	jobLimit, grace = 30 * time.Minute, 30 * time.Second
	restart         = 5 * time.Second
)

func setTimeouts(m *machine) {
	m.cfg.IdleTimeout, m.cfg.JobTimeout = api.Duration(idle), api.Duration(jobLimit)
}

// endingCase is one way in which a machine can end.
type endingCase struct {
	runner string
	change func(*machine)
	// The test waits for the phase after, if it is set. Then it stops the machine if stop is set, and fires
	// the timers.
	after   api.Phase
	stop    bool
	fire    []time.Duration
	phase   api.Phase
	reason  string
	message string // part of it
	phases  string
	result  string
}

func TestEndOfGitLabMachine(t *testing.T) {
	t.Parallel()

	runEndings(t, map[string]endingCase{
		"job succeeds": {
			runner: glStarts + glReceives + glSucceeds + glLeaves,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job 4711: success", result: "success",
			phases: "Started Configuring Listening Running Finished",
		},
		"job fails": {
			runner: glStarts + glReceives + glFails + glLeaves,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job 4711: failure (exit status 3)", result: "failed",
		},
		"job is cancelled": {
			runner: glStarts + glReceives + `printf '\033[0;33mWARNING: Job failed: canceled                     \033[0;m  duration_s\033[0;m=1\n'; ` + glLeaves,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job 4711: failure (canceled)", result: "canceled",
		},
		"system failure": {
			runner: glStarts + glReceives + glSystemFails + glLeaves,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job 4711: system failure (prepare environment: exit status 1)", result: "failed",
		},
		"JSON lines": {
			runner: `echo '{"level":"info","msg":"Starting runner for https://gitlab.example with token glrt-x ..."}'
echo '{"job":12,"job_name":"a","level":"info","msg":"Checking for jobs... received"}'
echo '{"job":12,"level":"info","msg":"Job succeeded"}'`,
			phase: api.PhaseFinished, reason: api.ReasonJobDone, message: ": success", result: "success",
			phases: "Started Configuring Listening Running Finished",
		},
		"no job is assigned": {
			runner: glStarts + glPatient, change: setTimeouts,
			after: api.PhaseListening, fire: []time.Duration{idle},
			phase: api.PhaseFinished, reason: api.ReasonIdleTimeout, message: "5m0s", phases: "Started Configuring Listening Finished",
		},
		"no job is assigned, and the runner hangs": {
			runner: glStarts + `trap '' QUIT INT; while :; do sleep 0.02; done`, change: setTimeouts,
			fire:  []time.Duration{idle, glGrace},
			phase: api.PhaseFinished, reason: api.ReasonIdleTimeout,
		},
		"a job that starts at the idle timeout runs": {
			runner: `trap 'quit=yes' QUIT; ` + glStarts + `while [ -z "$quit" ]; do sleep 0.02; done; ` + glReceives + "sleep 0.1; " + glSucceeds + glLeaves,
			change: setTimeouts,
			after:  api.PhaseListening, fire: []time.Duration{idle},
			phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "job 4711: success", result: "success",
			phases: "Started Configuring Listening Running Finished",
		},
		"the runner ends with an error": {
			runner: glStarts + `echo 'This runner has not received a job in 420 seconds, so now exiting'`, change: setTimeouts,
			phase: api.PhaseFinished, reason: api.ReasonIdleTimeout, message: "5m0s",
		},
		"a job that exceeds its timeout is cancelled": {
			runner: `trap 'echo "WARNING: Job failed: canceled"; exit 0' INT; trap '' QUIT; ` + glStarts + glReceives + `while :; do sleep 0.02; done`,
			change: setTimeouts,
			after:  api.PhaseRunning, fire: []time.Duration{jobLimit},
			phase: api.PhaseFailed, reason: api.ReasonJobTimeout, message: "job 4711 took more than 30m0s",
		},
		"the token is rejected": {
			runner: glStarts + `printf '\033[31;1mERROR: Checking for jobs... forbidden               \033[0;m  runner\033[0;m=x status\033[0;m=POST https://gitlab.example/api/v4/jobs/request: 403 Forbidden\n'; echo 'Runner is not healthy!'; trap 'exit 0' INT; while :; do sleep 0.02; done`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "does not accept the runner's token",
		},
		"the instance cannot be reached at first": {
			runner: `trap 'exit 0' INT; ` + glStarts + `[ -e "$0.tried" ] || { touch "$0.tried"; echo 'ERROR: Checking for jobs... client error  status=no such host'; while :; do sleep 0.02; done; }; ` +
				glReceives + glSucceeds + glLeaves,
			fire:  []time.Duration{restart},
			phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "success", result: "success",
		},
		"the instance is unreachable": {
			runner: `trap 'exit 0' INT; ` + glStarts + `echo 'ERROR: Checking for jobs... client error  status=no such host'; while :; do sleep 0.02; done`,
			fire:   slices.Repeat([]time.Duration{restart}, 5),
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "no such host",
		},
		"the runner dies in the job": {
			runner: glStarts + glReceives + "kill -9 $$",
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "code 137 during job 4711",
		},
		"wrong settings": {
			runner: `echo 'FATAL: Missing Executor'; exit 1`,
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "FATAL: Missing Executor",
		},
		"no runner in the image": {
			change: func(m *machine) { _ = os.Remove(m.path(gitlabRunner)) },
			phase:  api.PhaseFailed, reason: api.ReasonDownloadFailed, message: "the image has no /usr/bin/gitlab-runner",
		},
	}, newGitLabMachine)
}

func TestEndOfBuildkiteMachine(t *testing.T) {
	t.Parallel()

	runEndings(t, map[string]endingCase{
		"job passes": {
			runner: bkRegister + bkStarts + bkFinishes,
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job " + jobUUID + ": success (exit code 0)", result: "passed",
			phases: "Started Configuring Listening Running Finished",
		},
		"job fails": {
			runner: bkRegister + bkStarts + bkFinishes + "exit 3",
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job " + jobUUID + ": failure (exit code 3)", result: "failed",
		},
		"a job's exit code is not taken for a failed acquisition": {
			runner: bkRegister + bkStarts + bkFinishes + "exit 27",
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "failure (exit code 27)", result: "failed",
		},
		"the job is deleted": {
			runner: bkRegister + bkRejects + "exit 27",
			phase:  api.PhaseFinished, reason: api.ReasonJobGone, message: "cannot be acquired any more",
			phases: "Started Configuring Listening Finished",
		},
		"the job is deleted, reported by an older agent": {
			runner: bkRegister + bkRejects + "exit 1",
			phase:  api.PhaseFinished, reason: api.ReasonJobGone, message: jobUUID,
		},
		"the job is not there": {
			runner: bkRegister + `echo '` + bkTime + `ERROR  ci-1 PUT https://agent.buildkite.com/v3/jobs/x/acquire: 404 Not Found: No job found'
echo '` + bkTime + `ERROR  ci-1 Failed to acquire and run job: failed to acquire job: PUT https://agent.buildkite.com/v3/jobs/x/acquire: 404 Not Found: No job found'
exit 0`,
			phase: api.PhaseFinished, reason: api.ReasonJobGone, message: "cannot be acquired any more",
		},
		"the job is cancelled on Buildkite": {
			runner: bkRegister + bkStarts + bkCancels + bkFinishes + "exit 255",
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job " + jobUUID + ": canceled", result: "canceled",
			phases: "Started Configuring Listening Running Finished",
		},
		"the job times out on Buildkite": {
			runner: bkRegister + bkStarts + strings.Replace(bkCancels, "cancelled", "timed out", 1) + bkFinishes + "exit 255",
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job " + jobUUID + ": timed out", result: "timed_out",
		},
		"the agent dies while its job is cancelled": {
			runner: bkRegister + bkStarts + bkCancels + "kill -9 $$",
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "code 137 during job " + jobUUID,
		},
		"the job is locked": {
			runner: bkRegister + "exit 28",
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "is locked",
		},
		"the job is locked, and the agent exits with 0": {
			runner: bkRegister + `echo '` + bkTime + `ERROR  ci-1 Failed to acquire and run job: failed to acquire job: job is locked: 423 Locked'; exit 0`,
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "is locked",
		},
		"the agent exits without a job": {
			runner: bkRegister + "exit 0",
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "without a job",
		},
		"the token is rejected": {
			runner: `echo '` + bkTime + `WARN   POST https://agent.buildkite.com/v3/register: 401 Unauthorized (Attempt 1/30 Retrying in 10s)'; exit 1`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "does not accept the agent's token",
		},
		"Buildkite cannot be reached": {
			runner: `echo 'buildkite-agent: fatal: no such host' >&2; exit 1`,
			phase:  api.PhaseFailed, reason: api.ReasonRegistrationError, message: "no such host",
		},
		"the agent dies in the job": {
			runner: bkRegister + bkStarts + "kill -9 $$",
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "code 137 during job " + jobUUID,
		},
		"the agent hangs after its job": {
			runner: bkRegister + bkStarts + bkFinishes + `trap '' QUIT; while :; do sleep 0.02; done`,
			fire:   []time.Duration{2 * time.Minute, grace},
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job " + jobUUID + ": finished",
		},
		"a job that exceeds its timeout is cancelled": {
			runner: `trap 'exit 255' QUIT; trap '' INT; ` + bkRegister + bkStarts + `while :; do sleep 0.02; done`, change: setTimeouts,
			after: api.PhaseRunning, fire: []time.Duration{jobLimit},
			phase: api.PhaseFailed, reason: api.ReasonJobTimeout, message: "30m0s",
		},
		"the job is never assigned": {
			runner: `trap 'exit 0' INT; ` + bkRegister + `while :; do sleep 0.02; done`, change: setTimeouts,
			fire:  []time.Duration{idle},
			phase: api.PhaseFinished, reason: api.ReasonIdleTimeout,
		},
	}, newBuildkiteMachine)
}

func TestEndOfGenericMachine(t *testing.T) {
	t.Parallel()

	runEndings(t, map[string]endingCase{
		"exit code 0": {
			runner: "exit 0", phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "job job-7: success (exit code 0)", result: "success",
			phases: "Started Configuring Listening Running Finished",
		},
		"another exit code": {
			runner: "exit 3", phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "job job-7: failure (exit code 3)", result: "failure",
		},
		"killed": {
			runner: "kill -9 $$", phase: api.PhaseFinished, reason: api.ReasonJobDone, message: "job job-7: failure (exit code 137)", result: "failure",
		},
		"output that resembles a runner's": {
			runner: "echo 'Running job: other'; echo 'Job other completed with result: Failed'; echo 'Job succeeded'",
			phase:  api.PhaseFinished, reason: api.ReasonJobDone, message: "job job-7: success (exit code 0)", result: "success",
		},
		"no such command": {
			change: func(m *machine) { m.cfg.Command = []string{"/no/such/command"} },
			phase:  api.PhaseFailed, reason: api.ReasonRunnerFailed, message: "/no/such/command", phases: "Started Configuring Failed",
		},
		"too long": {
			runner: `trap 'exit 0' TERM; while :; do sleep 0.02; done`, change: setTimeouts,
			after: api.PhaseRunning, fire: []time.Duration{jobLimit},
			phase: api.PhaseFailed, reason: api.ReasonJobTimeout, message: "job job-7 took more than 30m0s", result: "timed_out",
		},
		"stopped": {
			runner: `trap 'exit 0' TERM; while :; do sleep 0.02; done`,
			after:  api.PhaseRunning, stop: true,
			phase: api.PhaseFinished, reason: api.ReasonTerminated, result: "cancelled",
		},
	}, newGenericMachine)
}

func runEndings(t *testing.T, cases map[string]endingCase, made func(*testing.T, string) *machine) {
	t.Helper()

	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := made(t, tc.runner)
			if tc.change != nil {
				tc.change(m)
			}

			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()

			result := m.start(t, ctx)

			if tc.after != "" {
				m.waitForPhase(t, tc.after)
			}

			if tc.stop {
				cancel()
			}

			for _, d := range tc.fire {
				m.clock.waitAndFire(t, d)
			}

			got := m.waitForEnd(t, result)
			if got.Phase != tc.phase || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("ended with %s, %s, %q; want %s, %s, %q\n%s", got.Phase, got.Reason, got.Message, tc.phase, tc.reason, tc.message, m.log)
			}

			if got.Result != tc.result {
				t.Errorf("result %q, want %q", got.Result, tc.result)
			}

			if tc.phases != "" && m.listPhases() != tc.phases {
				t.Errorf("phases %q, want %q", m.listPhases(), tc.phases)
			}
		})
	}
}

// TestInputOfRunners checks the arguments and the environment of runners.
func TestInputOfRunners(t *testing.T) {
	t.Parallel()

	const (
		record      = `d="$(dirname "$0")"; printf '%s\n' "$@" > "$d/argv"; env > "$d/env"; pwd > "$d/pwd"; `
		traceparent = "00-9f8b7c6d5e4f4a3b8c2d1e0f9a8b7c6d-0123456789abcdef-01"
	)

	for name, tc := range map[string]struct {
		machine *machine
		dir     string
		argv    []string
		env     map[string]string
	}{
		"gitlab": {
			machine: newGitLabMachine(t, record+glStarts+glReceives+glSucceeds), dir: "/usr/bin",
			argv: []string{
				"run-single", "--url", "https://gitlab.example", "--executor", "shell", "--builds-dir", "ROOT/tmp/runner-work",
				"--max-builds", "1", "--wait-timeout", "421",
			},
			env: map[string]string{
				"CI_SERVER_TOKEN": runnerToken, "RUNNER_NAME": "ci-1", "RUNNER_CACHE_DIR": "ROOT/tmp/runner-work/cache",
				"RUNNER_ENV": "CI_SERVER_TOKEN=", "TRACEPARENT": traceparent,
			},
		},
		"buildkite": {
			machine: newBuildkiteMachine(t, record+bkRegister+bkStarts+bkFinishes), dir: "/usr/bin",
			argv: []string{"start", "--acquire-job", jobUUID},
			env: map[string]string{
				"BUILDKITE_AGENT_TOKEN": runnerToken, "BUILDKITE_AGENT_NAME": "ci-1", "BUILDKITE_AGENT_TAGS": "queue=default,os=linux",
				"BUILDKITE_AGENT_ENDPOINT": "https://agent.example/v3", "BUILDKITE_BUILD_PATH": "ROOT/tmp/runner-work/builds",
				"BUILDKITE_PLUGINS_PATH": "ROOT/tmp/runner-work/plugins", "BUILDKITE_HOOKS_PATH": "ROOT/etc/buildkite-agent/hooks",
				"BUILDKITE_AGENT_REFLECT_EXIT_STATUS": "true", "BUILDKITE_AGENT_NO_COLOR": "true", "TRACEPARENT": traceparent,
			},
		},
		"generic": {
			machine: newGenericMachine(t, ""), dir: "/opt",
			argv: []string{"two words", "$HOME"},
			env:  map[string]string{"HYPERFLEET_JOB_ID": "job-7", "HYPERFLEET_JOB_NAME": "two\tparts"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			m := tc.machine
			switch m.cfg.Platform {
			case "gitlab-ci":
				m.cfg.IdleTimeout, m.cfg.Traceparent = api.Duration(idle+time.Second), traceparent
			case "buildkite":
				m.cfg.RegistrationURL, m.cfg.Traceparent = "https://agent.example/v3", traceparent
				m.write(t, "/etc/buildkite-agent/hooks/environment", "")
			default:
				m.write(t, "/opt/job.sh", record)
				m.cfg.Command = append([]string{"/opt/job.sh"}, tc.argv...)
				m.cfg.Env = tc.env
			}

			if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != api.ReasonJobDone {
				t.Fatalf("%+v\n%s", got, m.log)
			}

			plain := func(file string) string {
				return strings.ReplaceAll(strings.TrimSuffix(m.read(t, tc.dir+"/"+file), "\n"), m.root, "ROOT")
			}

			if diff := cmp.Diff(tc.argv, strings.Split(plain("argv"), "\n")); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}

			if got := plain("pwd"); got != "ROOT/tmp/runner-work" {
				t.Errorf("it ran in %s", got)
			}

			got := map[string]string{}

			for line := range strings.SplitSeq(plain("env"), "\n") {
				key, value, _ := strings.Cut(line, "=")
				if _, ok := tc.env[key]; ok || strings.HasPrefix(key, "BUILDKITE") || strings.HasPrefix(key, "ACTIONS_") {
					got[key] = value
				}
			}

			if diff := cmp.Diff(tc.env, got); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLastReportHasTheEndOfTheLog: reports of the phases Finished and Failed have the end of the log, without
// credentials and limited in size.
func TestLastReportHasTheEndOfTheLog(t *testing.T) {
	t.Parallel()

	t.Run("job done", func(t *testing.T) {
		t.Parallel()

		m := newGenericMachine(t, `i=0; while [ $i -lt 3000 ]; do echo "line $i: 0123456789 0123456789 0123456789"; i=$((i+1)); done; printf 'the end'`)
		m.cfg.SPIFFE = &api.SPIFFE{JoinToken: reportToken}
		m.cfg.Command[2] += "; echo ' " + reportToken + "' >&2"

		got := m.waitForEnd(t, m.start(t, t.Context()))
		if len(got.Log) > api.MaxLog || len(got.Log) < api.MaxLog-100 {
			t.Errorf("the log has %d bytes", len(got.Log))
		}

		if !strings.HasPrefix(got.Log, "line ") || !strings.HasSuffix(got.Log, "the end ***\n") {
			t.Errorf("the log is %q ... %q", got.Log[:20], got.Log[len(got.Log)-40:])
		}
	})

	t.Run("failed registration", func(t *testing.T) {
		t.Parallel()

		m := newMachine(t)
		m.cfg.JITConfig, m.cfg.RunnerToken, m.cfg.RegistrationURL = "", runnerToken, "https://github.com/o"
		m.write(t, runScript, printListening)
		m.write(t, "/opt/actions-runner/config.sh", `echo "Http response code: NotFound `+runnerToken+`" >&2; exit 1`)

		got := m.waitForEnd(t, m.start(t, t.Context()))
		if got.Reason != api.ReasonRegistrationError || got.Log != "Http response code: NotFound ***\n" {
			t.Errorf("%+v", got)
		}
	})

	t.Run("a credential across the cut of a long line", func(t *testing.T) {
		t.Parallel()

		const cut = 8 << 10

		m := newGitLabMachine(t, fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; echo %s and more; `, cut-5, runnerToken)+glStarts+glReceives+glSucceeds)

		got := m.waitForEnd(t, m.start(t, t.Context()))
		first, _, _ := strings.Cut(got.Log, "\n")

		if !strings.HasPrefix(first, "xxx") || strings.Contains(first, "runner") || len(first) != cut {
			t.Errorf("the line ends with %q, %d bytes", first[max(0, len(first)-20):], len(first))
		}
	})
}
