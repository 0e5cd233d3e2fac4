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

// gitLab runs gitlab-runner for one job: `gitlab-runner run-single`, whose settings are
// the runner's flags and variables (https://docs.gitlab.com/runner/commands/#gitlab-runner-run-single).
type gitLab struct{}

const defaultGitLabProgram = "/usr/bin/gitlab-runner"

const (
	// gitLabSlack is how much longer than the service the runner itself waits for a job:
	// the service's own clock tells first.
	gitLabSlack = 2 * time.Minute
	// gitLabQuit is how long the runner may take to quit: GitLab holds its question for a
	// job for up to 50 seconds.
	gitLabQuit = time.Minute
)

// What gitlab-runner prints, its colours taken out. Fields of a message come after it, at
// least one blank away.
var (
	gitLabStarting  = regexp.MustCompile(`Starting runner for \S+ with token`)
	gitLabReceived  = regexp.MustCompile(`Checking for jobs\.{3} received\b(?:.*?[ "]job(?:=|":)(\d+))?`)
	gitLabForbidden = regexp.MustCompile(`Checking for jobs\.{3} forbidden`)
	gitLabUnhealthy = regexp.MustCompile(`Checking for jobs\.{3} client error|Runner is not healthy!`)
	gitLabSucceeded = regexp.MustCompile(`\bJob succeeded\b`)
	gitLabFailed    = regexp.MustCompile(`\bJob failed( \(system failure\))?(?:: (.*?))?(?:\s{2,}|\s+\w+=|$)`)
	gitLabNoJob     = regexp.MustCompile(`has not received a job in \d+ seconds`)
)

func (gitLab) check(c *guest.Config) error {
	if c.Runner.Program == "" {
		c.Runner.Program = defaultGitLabProgram
	}

	switch {
	case c.RunnerToken == "":
		return errors.New("the credential is missing: runner_token is not set")
	case c.RegistrationURL == "":
		return errors.New("registration_url is missing: it is the URL of the GitLab instance")
	}

	return unused(c, "jit_config", "job_id", "command", "env", "runner.download_url")
}

func (gitLab) program(c *guest.Config) string { return c.Runner.Program }

// prepare has nothing to do: the token is that of a runner which GitLab knows already.
func (gitLab) prepare(context.Context, *Service, *guest.Config, *account) error { return nil }

func (gitLab) launch(s *Service, c *guest.Config) launch {
	work := s.path(c.Runner.WorkDir)
	out := launch{
		path: s.path(c.Runner.Program), dir: work,
		args: []string{"run-single", "--url", c.RegistrationURL, "--executor", "shell", "--builds-dir", work, "--max-builds", "1"},
		env: []string{
			setting("CI_SERVER_TOKEN", c.RunnerToken),
			setting("RUNNER_NAME", c.RunnerName),
			setting("RUNNER_CACHE_DIR", filepath.Join(work, "cache")),
			// The shell executor hands its own environment to the job: this takes the
			// token out of it, lest a job print it by mistake.
			setting("RUNNER_ENV", "CI_SERVER_TOKEN="),
		},
		// SIGQUIT makes it end when it has no job or after it, SIGINT cancels the job.
		quit: syscall.SIGQUIT, abort: syscall.SIGINT,
		grace: gitLabQuit,
	}

	if idle := c.IdleTimeout.Value(); idle > 0 {
		seconds := int64((idle + gitLabSlack + time.Second - 1) / time.Second)
		out.args = append(out.args, "--wait-timeout", strconv.FormatInt(seconds, 10))
	}

	return out
}

func (gitLab) read(line string) (event, bool) {
	line = plain(line)

	switch {
	case gitLabStarting.MatchString(line):
		return event{kind: eventListening}, true
	case gitLabReceived.MatchString(line):
		return event{kind: eventRunning, text: gitLabReceived.FindStringSubmatch(line)[1]}, true
	case gitLabSucceeded.MatchString(line):
		return event{kind: eventCompleted, text: "success", result: "success"}, true
	case gitLabFailed.MatchString(line):
		return gitLabFailure(gitLabFailed.FindStringSubmatch(line)), true
	case gitLabForbidden.MatchString(line):
		return event{kind: eventRefused, text: gitLabRefusal}, true
	case gitLabUnhealthy.MatchString(line):
		return event{kind: eventRetry}, true
	case gitLabNoJob.MatchString(line):
		return event{kind: eventTrouble, text: troubleNoJob}, true
	default:
		return event{}, false
	}
}

const gitLabRefusal = "GitLab does not accept the runner's token: the runner was removed, or its token has expired"

// troubleNoJob says that the runner itself gave up to wait.
const troubleNoJob = "no job"

// gitLabFailure is a failed job's end with what the runner says of it.
func gitLabFailure(match []string) event {
	system, why := match[1] != "", strings.TrimSpace(match[2])
	out := event{kind: eventCompleted, text: "failure", result: "failed"}

	switch {
	case system && why != "":
		out.text = "system failure (" + why + ")"
	case system:
		out.text = "system failure"
	case why != "":
		out.text = "failure (" + why + ")"
	}

	if why == "canceled" { // by a person, in GitLab's spelling
		out.result = why
	}

	return out
}

func (gitLab) verdict(w *watch, exit int) *end {
	if w.trouble == troubleNoJob && !w.ran {
		return w.idled()
	}

	return w.broken(exit)
}

// credentials: the token is in the runner's environment alone.
func (gitLab) credentials(*guest.Config) []string { return nil }
