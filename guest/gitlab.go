// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// gitLab runs gitlab-runner for one job: `gitlab-runner run-single`. Flags and environment variables
// configure the runner (https://docs.gitlab.com/runner/commands/#gitlab-runner-run-single).
type gitLab struct{}

const defaultGitLabProgram = "/usr/bin/gitlab-runner"

const (
	// gitLabWaitMargin is how much longer than the service the runner itself waits for a job, so that the
	// idle timeout of the service ends first.
	gitLabWaitMargin = 2 * time.Minute
	// gitLabQuitTimeout is how long the runner may take to quit, because GitLab can delay its response to a
	// request for a job by up to 50 seconds.
	gitLabQuitTimeout = time.Minute
)

// Patterns of gitlab-runner's output without its colours. The fields of a message follow it after at least
// one blank.
var (
	gitLabStarting  = regexp.MustCompile(`Starting runner for \S+ with token`)
	gitLabReceived  = regexp.MustCompile(`Checking for jobs\.{3} received\b(?:.*?[ "]job(?:=|":)(\d+))?`)
	gitLabForbidden = regexp.MustCompile(`Checking for jobs\.{3} forbidden`)
	gitLabUnhealthy = regexp.MustCompile(`Checking for jobs\.{3} client error|Runner is not healthy!`)
	gitLabSucceeded = regexp.MustCompile(`\bJob succeeded\b`)
	gitLabFailed    = regexp.MustCompile(`\bJob failed( \(system failure\))?(?:: (.*?))?(?:\s{2,}|\s+\w+=|$)`)
	gitLabNoJob     = regexp.MustCompile(`has not received a job in \d+ seconds`)
)

func (gitLab) validate(c *guest.Config) error {
	if c.Runner.Program == "" {
		c.Runner.Program = nativeProgram(defaultGitLabProgram)
	}

	switch {
	case c.RunnerToken == "":
		return errors.New("the credential is missing: runner_token is not set")
	case c.RegistrationURL == "":
		return errors.New("registration_url is missing: it is the URL of the GitLab instance")
	}

	return rejectUnusedFields(c, "jit_config", "job_id", "command", "env", "runner.download_url")
}

func (gitLab) programPath(c *guest.Config) string { return c.Runner.Program }

// prepare does nothing, because the token belongs to a runner that is already registered.
func (gitLab) prepare(context.Context, *Service, *guest.Config, *account) error { return nil }

func (gitLab) newLaunch(s *Service, c *guest.Config) launch {
	work := s.path(c.Runner.WorkDir)
	out := launch{
		path: s.path(c.Runner.Program), dir: work,
		args: []string{"run-single", "--url", c.RegistrationURL, "--executor", "shell", "--builds-dir", work, "--max-builds", "1"},
		env: []string{
			formatVariable("CI_SERVER_TOKEN", c.RunnerToken),
			formatVariable("RUNNER_NAME", c.RunnerName),
			formatVariable("RUNNER_CACHE_DIR", filepath.Join(work, "cache")),
			// The shell executor passes its own environment to the job. This setting removes the token from
			// it, so that a job does not print the token by mistake.
			formatVariable("RUNNER_ENV", "CI_SERVER_TOKEN="),
		},
		// SIGQUIT stops the runner after its job, or at once if it has none. SIGINT cancels the job.
		quit: quitSignal, abort: syscall.SIGINT,
		grace: gitLabQuitTimeout,
	}
	out.args = append(out.args, gitLabShell()...)

	if idle := c.IdleTimeout.Value(); idle > 0 {
		seconds := int64((idle + gitLabWaitMargin + time.Second - 1) / time.Second)
		out.args = append(out.args, "--wait-timeout", strconv.FormatInt(seconds, 10))
	}

	return out
}

func (gitLab) parseLine(line string) (event, bool) {
	line = stripANSI(line)

	switch {
	case gitLabStarting.MatchString(line):
		return event{kind: eventListening}, true
	case gitLabReceived.MatchString(line):
		return event{kind: eventRunning, text: gitLabReceived.FindStringSubmatch(line)[1]}, true
	case gitLabSucceeded.MatchString(line):
		return event{kind: eventCompleted, text: "success", result: "success"}, true
	case gitLabFailed.MatchString(line):
		return newGitLabFailureEvent(gitLabFailed.FindStringSubmatch(line)), true
	case gitLabForbidden.MatchString(line):
		return event{kind: eventRejected, text: gitLabRefusal}, true
	case gitLabUnhealthy.MatchString(line):
		return event{kind: eventRetry}, true
	case gitLabNoJob.MatchString(line):
		return event{kind: eventExitReason, text: exitReasonNoJob}, true
	default:
		return event{}, false
	}
}

const gitLabRefusal = "GitLab does not accept the runner's token: the runner was deleted, or its token has expired"

// exitReasonNoJob is the reason if the runner itself stopped waiting for a job.
const exitReasonNoJob = "no job"

// newGitLabFailureEvent returns the event of a failed job with the reason that the runner printed. match is that
// of gitLabFailed.
func newGitLabFailureEvent(match []string) event {
	isSystem, reason := match[1] != "", strings.TrimSpace(match[2])
	out := event{kind: eventCompleted, text: "failure", result: "failed"}

	switch {
	case isSystem && reason != "":
		out.text = "system failure (" + reason + ")"
	case isSystem:
		out.text = "system failure"
	case reason != "":
		out.text = "failure (" + reason + ")"
	}

	if reason == "canceled" { // a person canceled the job; this is GitLab's spelling
		out.result = reason
	}

	return out
}

func (gitLab) endAfterExit(w *runnerWatch, code int) *endError {
	if w.exitReason == exitReasonNoJob && !w.hasJobStarted {
		return w.newIdleTimeout()
	}

	return w.newUnexpectedExit(code)
}

// credentialFiles returns no files, because the token is only in the runner's environment.
func (gitLab) credentialFiles(*guest.Config) []string { return nil }
