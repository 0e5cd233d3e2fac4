// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// buildkite runs buildkite-agent for the one job that the machine was created for:
// `buildkite-agent start --acquire-job` (https://buildkite.com/docs/agent/v3/cli-start).
type buildkite struct{}

const defaultBuildkiteProgram = "/usr/bin/buildkite-agent"

// Exit codes of an agent that could not acquire its job.
const (
	exitNotAcquired = 27
	exitJobLocked   = 28
)

// Patterns of buildkite-agent's output without its colours.
var (
	buildkiteRegistered = regexp.MustCompile(`Successfully registered agent "`)
	buildkiteStarting   = regexp.MustCompile(`\bStarting job\b`)
	buildkiteFinished   = regexp.MustCompile(`\bFinished job\b`)
	buildkiteCanceling  = regexp.MustCompile(`\bCanceling job \S+ .*\(job (cancelled|timed out) on Buildkite\)`)
	// If the job no longer exists, Buildkite responds with 404, and the agent exits with code 0.
	buildkiteRejected = regexp.MustCompile(`rejected the call to acquire the job|/acquire: 404\b`)
	buildkiteLocked   = regexp.MustCompile(`job is locked`)
	buildkiteBadToken = regexp.MustCompile(`(?i)\b401\b|invalid (access )?token|unauthorized`)
)

func (buildkite) validate(c *guest.Config) error {
	if c.Runner.Program == "" {
		c.Runner.Program = nativeProgram(defaultBuildkiteProgram)
	}

	switch {
	case c.RunnerToken == "":
		return errors.New("the credential is missing: runner_token is not set")
	case c.JobID == "":
		return errors.New("job_id is missing: an agent runs one job")
	}

	return rejectUnusedFields(c, "jit_config", "command", "env", "runner.download_url")
}

func (buildkite) programPath(c *guest.Config) string { return c.Runner.Program }

// prepare does nothing, because the agent registers itself.
func (buildkite) prepare(context.Context, *Service, *guest.Config, *account) error { return nil }

func (buildkite) newLaunch(s *Service, c *guest.Config) launch {
	work := s.path(c.Runner.WorkDir)
	out := launch{
		path: s.path(c.Runner.Program), dir: work,
		args: []string{"start", "--acquire-job", c.JobID},
		env: []string{
			formatVariable("BUILDKITE_AGENT_TOKEN", c.RunnerToken),
			formatVariable("BUILDKITE_AGENT_NAME", c.RunnerName),
			formatVariable("BUILDKITE_BUILD_PATH", filepath.Join(work, "builds")),
			formatVariable("BUILDKITE_PLUGINS_PATH", filepath.Join(work, "plugins")),
			// With this setting, the agent exits with the exit code of its job.
			formatVariable("BUILDKITE_AGENT_REFLECT_EXIT_STATUS", "true"),
			formatVariable("BUILDKITE_AGENT_NO_COLOR", "true"),
		},
		// SIGINT stops the agent after its job, or at once if it has none. SIGQUIT cancels the job.
		quit: syscall.SIGINT, abort: syscall.SIGQUIT,
		success: "passed", failure: "failed",
	}

	if c.RegistrationURL != "" {
		out.env = append(out.env, formatVariable("BUILDKITE_AGENT_ENDPOINT", c.RegistrationURL))
	}

	if len(c.Labels) > 0 {
		out.env = append(out.env, formatVariable("BUILDKITE_AGENT_TAGS", strings.Join(c.Labels, ",")))
	}

	if hooks := s.path(buildkiteHooks); isDir(hooks) {
		out.env = append(out.env, formatVariable("BUILDKITE_HOOKS_PATH", hooks))
	}

	return out
}

func isDir(path string) bool {
	info, err := os.Stat(path)

	return err == nil && info.IsDir()
}

func (buildkite) parseLine(line string) (event, bool) {
	line = stripANSI(line)

	switch {
	case buildkiteRegistered.MatchString(line):
		return event{kind: eventListening}, true
	case buildkiteStarting.MatchString(line):
		return event{kind: eventRunning}, true
	case buildkiteCanceling.MatchString(line):
		return newCancellationEvent(buildkiteCanceling.FindStringSubmatch(line)[1]), true
	case buildkiteFinished.MatchString(line):
		return event{kind: eventCompleted}, true
	case buildkiteRejected.MatchString(line):
		return event{kind: eventExitReason, text: exitReasonRejected}, true
	case buildkiteLocked.MatchString(line):
		return event{kind: eventExitReason, text: exitReasonLocked}, true
	default:
		return event{}, false
	}
}

// newCancellationEvent returns the event of a job that Buildkite cancels, with the job's result. The result
// cannot be taken from the exit code, which is that of a failed job.
func newCancellationEvent(reason string) event {
	if reason == "cancelled" {
		return event{kind: eventCanceling, text: "canceled", result: "canceled"}
	}

	return event{kind: eventCanceling, text: reason, result: "timed_out"}
}

// Reasons why an agent did not get its job, as texts of eventExitReason.
const (
	exitReasonRejected = "rejected"
	exitReasonLocked   = "locked"
)

// endAfterExit returns the end of a machine whose agent exited before the job finished. The special exit
// codes describe the acquisition only if no job has started. Otherwise, the exit code is the job's exit code.
func (buildkite) endAfterExit(w *runnerWatch, code int) *endError {
	output := w.lastOutput.text()

	switch {
	case w.hasJobStarted:
		return w.newUnexpectedExit(code)
	case code == exitNotAcquired, w.exitReason == exitReasonRejected:
		return newFinish(guest.ReasonJobGone,
			"job "+w.cfg.JobID+" cannot be acquired any more: it was cancelled, has finished, or another agent has acquired it")
	case code == exitJobLocked, w.exitReason == exitReasonLocked:
		return newFailure(guest.ReasonRunnerFailed,
			"job %s is locked because it waits for something else, and was not unlocked in time: %s", w.cfg.JobID, output)
	case !w.wasOnline && buildkiteBadToken.MatchString(output):
		return newFailure(guest.ReasonRegistrationError,
			"Buildkite does not accept the agent's token: it has expired, or its job has finished: %s", output)
	case !w.wasOnline:
		return newFailure(guest.ReasonRegistrationError, "the agent could not register (exit code %d): %s", code, output)
	default:
		return w.newUnexpectedExit(code)
	}
}

// credentialFiles returns no files, because the token is only in the agent's environment.
func (buildkite) credentialFiles(*guest.Config) []string { return nil }
