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

// buildkite runs buildkite-agent for the one job that the machine was made for:
// `buildkite-agent start --acquire-job` (https://buildkite.com/docs/agent/v3/cli-start).
type buildkite struct{}

const (
	defaultBuildkiteProgram = "/usr/bin/buildkite-agent"
	// buildkiteHooks is where packages of the agent keep the machine's hooks.
	buildkiteHooks = "/etc/buildkite-agent/hooks"
)

// Exit codes of an agent that could not acquire its job.
const (
	exitNotAcquired = 27
	exitJobLocked   = 28
)

// What buildkite-agent prints, its colours taken out.
var (
	buildkiteRegistered = regexp.MustCompile(`Successfully registered agent "`)
	buildkiteStarting   = regexp.MustCompile(`\bStarting job\b`)
	buildkiteFinished   = regexp.MustCompile(`\bFinished job\b`)
	buildkiteCanceling  = regexp.MustCompile(`\bCanceling job \S+ .*\(job (cancelled|timed out) on Buildkite\)`)
	// A job that is not there any more is answered with 404, after which the agent ends as if
	// all were well.
	buildkiteRejected = regexp.MustCompile(`rejected the call to acquire the job|/acquire: 404\b`)
	buildkiteLocked   = regexp.MustCompile(`job is locked`)
	buildkiteBadToken = regexp.MustCompile(`(?i)\b401\b|invalid (access )?token|unauthorized`)
)

func (buildkite) check(c *guest.Config) error {
	if c.Runner.Program == "" {
		c.Runner.Program = defaultBuildkiteProgram
	}

	switch {
	case c.RunnerToken == "":
		return errors.New("the credential is missing: runner_token is not set")
	case c.JobID == "":
		return errors.New("job_id is missing: an agent is for one job")
	}

	return unused(c, "jit_config", "command", "env", "runner.download_url")
}

func (buildkite) program(c *guest.Config) string { return c.Runner.Program }

// prepare has nothing to do: the agent registers itself.
func (buildkite) prepare(context.Context, *Service, *guest.Config, *account) error { return nil }

func (buildkite) launch(s *Service, c *guest.Config) launch {
	work := s.path(c.Runner.WorkDir)
	out := launch{
		path: s.path(c.Runner.Program), dir: work,
		args: []string{"start", "--acquire-job", c.JobID},
		env: []string{
			setting("BUILDKITE_AGENT_TOKEN", c.RunnerToken),
			setting("BUILDKITE_AGENT_NAME", c.RunnerName),
			setting("BUILDKITE_BUILD_PATH", filepath.Join(work, "builds")),
			setting("BUILDKITE_PLUGINS_PATH", filepath.Join(work, "plugins")),
			// The agent's exit code is its job's.
			setting("BUILDKITE_AGENT_REFLECT_EXIT_STATUS", "true"),
			setting("BUILDKITE_AGENT_NO_COLOR", "true"),
		},
		// SIGINT makes it end when it has no job or after it, SIGQUIT cancels the job.
		quit: syscall.SIGINT, abort: syscall.SIGQUIT,
		success: "passed", failure: "failed",
	}

	if c.RegistrationURL != "" {
		out.env = append(out.env, setting("BUILDKITE_AGENT_ENDPOINT", c.RegistrationURL))
	}

	if len(c.Labels) > 0 {
		out.env = append(out.env, setting("BUILDKITE_AGENT_TAGS", strings.Join(c.Labels, ",")))
	}

	if hooks := s.path(buildkiteHooks); isDir(hooks) {
		out.env = append(out.env, setting("BUILDKITE_HOOKS_PATH", hooks))
	}

	return out
}

func isDir(path string) bool {
	info, err := os.Stat(path)

	return err == nil && info.IsDir()
}

func (buildkite) read(line string) (event, bool) {
	line = plain(line)

	switch {
	case buildkiteRegistered.MatchString(line):
		return event{kind: eventListening}, true
	case buildkiteStarting.MatchString(line):
		return event{kind: eventRunning}, true
	case buildkiteCanceling.MatchString(line):
		return buildkiteCancellation(buildkiteCanceling.FindStringSubmatch(line)[1]), true
	case buildkiteFinished.MatchString(line):
		return event{kind: eventCompleted}, true
	case buildkiteRejected.MatchString(line):
		return event{kind: eventTrouble, text: troubleRejected}, true
	case buildkiteLocked.MatchString(line):
		return event{kind: eventTrouble, text: troubleLocked}, true
	default:
		return event{}, false
	}
}

// buildkiteCancellation is how a job will have gone that Buildkite ends. Its exit code is
// that of a failure.
func buildkiteCancellation(how string) event {
	if how == "cancelled" {
		return event{kind: eventEnding, text: "canceled", result: "canceled"}
	}

	return event{kind: eventEnding, text: how, result: "timed_out"}
}

// Words for how an agent did not get its job.
const (
	troubleRejected = "rejected"
	troubleLocked   = "locked"
)

// verdict judges an agent that ended before its job did. The exit codes speak of the
// acquisition only as long as no job ran: with one they are the job's own.
func (buildkite) verdict(w *watch, exit int) *end {
	said := w.last.text()

	switch {
	case w.ran:
		return w.broken(exit)
	case exit == exitNotAcquired, w.trouble == troubleRejected:
		return ended(guest.ReasonJobGone,
			"job "+w.cfg.JobID+" cannot be acquired any more: it was cancelled, has finished, or another agent took it")
	case exit == exitJobLocked, w.trouble == troubleLocked:
		return failed(guest.ReasonRunnerFailed, "job %s is locked: it waits for something else, and did not become free in time: %s",
			w.cfg.JobID, said)
	case !w.listening && buildkiteBadToken.MatchString(said):
		return failed(guest.ReasonRegistrationError,
			"Buildkite does not accept the agent's token: it has expired, or its job is over: %s", said)
	case !w.listening:
		return failed(guest.ReasonRegistrationError, "the agent could not register (exit code %d): %s", exit, said)
	default:
		return w.broken(exit)
	}
}

// credentials: the token is in the agent's environment alone.
func (buildkite) credentials(*guest.Config) []string { return nil }
