// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// gitHub runs the runner of GitHub Actions (https://github.com/actions/runner): config.sh
// where it is to be registered, and run.sh.
type gitHub struct{}

// Exit codes of the runner's listener. The runner's own run.sh hides most of them behind
// 0 and says them in words, so both are looked at.
const (
	exitOK            = 0
	exitTerminated    = 1
	exitRetryable     = 2
	exitUpdating      = 3
	exitUpdatingEph   = 4
	exitConflict      = 5
	exitConfigRefresh = 6
	exitDeprecated    = 7
)

// Bounds of the registration.
const (
	configureTries   = 3
	configureTimeout = 5 * time.Minute
)

// inputPrefix begins the variables by which the runner takes its inputs.
const inputPrefix = "ACTIONS_RUNNER_INPUT_"

// What the runner and its scripts print.
var (
	lineListening = regexp.MustCompile(`(^|: )Listening for Jobs`)
	lineRunning   = regexp.MustCompile(`(?:^|: )Running job: (.*)`)
	lineCompleted = regexp.MustCompile(`(?:^|: )Job (.*) completed with result: (\w+)`)
	lineRestart   = regexp.MustCompile(`^Restarting runner\.{3}`)
	lineExit      = regexp.MustCompile(`(?i)exit with (terminated error|session conflict|deprecated version)`)
)

// refused are answers of the forge that another try does not change.
var refused = regexp.MustCompile(`(?i)not ?found|unauthorized|forbidden|\b40[0-9]\b|already (configured|exists)`)

func (gitHub) check(c *guest.Config) error {
	switch {
	case c.JITConfig == "" && c.RunnerToken == "":
		return errors.New("the credential is missing: neither jit_config nor runner_token is set")
	case c.JITConfig == "" && c.RegistrationURL == "":
		return errors.New("registration_url is missing: runner_token needs it")
	}

	return unused(c, "job_id", "command", "env", "runner.program")
}

func (gitHub) program(c *guest.Config) string {
	return filepath.Join(c.Runner.InstallPath, c.Runner.RunScript)
}

// prepare registers the runner with its token where there is no JIT configuration.
func (g gitHub) prepare(ctx context.Context, s *Service, c *guest.Config, who *account) error {
	dir := s.path(c.Runner.InstallPath)
	if err := who.own(dir); err != nil {
		return failed(guest.ReasonRunnerFailed, "give %s to user %s: %w", dir, runnerUser, err)
	}

	if c.JITConfig != "" {
		return nil
	}

	for try := 1; ; try++ {
		said, err := g.register(ctx, s, c, who)
		if err == nil {
			return nil
		}

		if ctx.Err() != nil || try == configureTries || refused.MatchString(said) {
			return failed(guest.ReasonRegistrationError, "register runner %s at %s: %w: %s",
				c.RunnerName, c.RegistrationURL, err, said)
		}

		s.log.Warn("the runner could not be registered, another try follows", "try", try, "error", err.Error())

		if err := pause(ctx, s.clock, s.opts.RestartPause); err != nil {
			return failed(guest.ReasonRegistrationError, "register runner %s: %w", c.RunnerName, err)
		}
	}
}

// register runs the configuration script and gives the last of what it said.
func (g gitHub) register(ctx context.Context, s *Service, c *guest.Config, who *account) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, configureTimeout, errors.New("no end after "+configureTimeout.String()))
	defer cancel()

	args := []string{"--unattended", "--ephemeral", "--disableupdate", "--replace", "--name", c.RunnerName,
		"--work", s.path(c.Runner.WorkDir), "--url", c.RegistrationURL}
	if len(c.Labels) > 0 { // a runner needs at least one
		args = append(args, "--no-default-labels", "--labels", strings.Join(c.Labels, ","))
	}

	if c.RunnerGroup != "" {
		args = append(args, "--runnergroup", c.RunnerGroup)
	}

	cmd := s.command(ctx, g.script(s, c, c.Runner.ConfigScript, "TOKEN", c.RunnerToken, args...), who)
	last := &lastLines{}
	out := s.lines(last.add)
	cmd.Stdout, cmd.Stderr = out, out

	// The kernel takes the end of this thread for the end of the service (Pdeathsig).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	err := cmd.Run()

	out.flush()

	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}

	return last.text(), err
}

// script is one of the runner's scripts. Its secret goes by environment, as the runner
// takes every input as ACTIONS_RUNNER_INPUT_NAME.
func (gitHub) script(s *Service, c *guest.Config, name, input, secret string, args ...string) launch {
	dir := s.path(c.Runner.InstallPath)
	out := launch{path: filepath.Join(dir, name), args: args, dir: dir}

	if secret != "" {
		out.env = append(out.env, setting(inputPrefix+input, secret))
	}

	if os.Geteuid() == 0 {
		out.env = append(out.env, "RUNNER_ALLOW_RUNASROOT=1") // of no meaning for other users
	}

	return out
}

func (g gitHub) launch(s *Service, c *guest.Config) launch {
	out := g.script(s, c, c.Runner.RunScript, "JITCONFIG", c.JITConfig)
	out.hooks = true
	// The runner ends its session on it, and cancels a job that it has.
	out.quit, out.abort = syscall.SIGINT, syscall.SIGINT
	// Makes run.sh tell when the forge has refused the runner's version.
	out.env = append(out.env, "ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1")

	// The first is read by runners that are built to let the cache be elsewhere, the second
	// reaches actions where a runner is patched not to overwrite it
	// (https://gha-cache-server.falcondev.io/getting-started). GitHub's own overwrites it.
	if cache := actionsCache(c); cache != "" {
		out.env = append(out.env, setting("CUSTOM_ACTIONS_RESULTS_URL", cache), setting("ACTIONS_RESULTS_URL", cache))
	}

	return out
}

func (gitHub) read(line string) (event, bool) {
	switch {
	case lineListening.MatchString(line):
		return event{kind: eventListening}, true
	case lineCompleted.MatchString(line):
		said := lineCompleted.FindStringSubmatch(line)[2]

		return event{kind: eventCompleted, text: said, result: gitHubConclusion(said)}, true
	case lineRunning.MatchString(line):
		return event{kind: eventRunning, text: strings.TrimSpace(lineRunning.FindStringSubmatch(line)[1])}, true
	case lineRestart.MatchString(line):
		return event{kind: eventRestart}, true
	case lineExit.MatchString(line):
		return event{kind: eventTrouble, text: strings.ToLower(lineExit.FindStringSubmatch(line)[1])}, true
	default:
		return event{}, false
	}
}

// gitHubConclusion is the word of GitHub's API for a result as the runner prints it
// (TaskResult in the runner's sources).
func gitHubConclusion(said string) string {
	switch said {
	case "Succeeded", "SucceededWithIssues":
		return "success"
	case "Failed":
		return "failure"
	case "Canceled":
		return "cancelled"
	default:
		return strings.ToLower(said)
	}
}

func (gitHub) verdict(w *watch, exit int) *end {
	said := w.last.text()

	switch {
	case exit == exitConflict, strings.Contains(w.trouble, "session conflict"):
		return failed(guest.ReasonRegistrationError, "another runner is connected as %s: %s", w.cfg.RunnerName, said)
	case exit == exitDeprecated, strings.Contains(w.trouble, "deprecated"):
		return failed(guest.ReasonRunnerFailed, "the forge refuses this version of the runner, install a newer one in the image: %s",
			said)
	case (exit == exitTerminated || strings.Contains(w.trouble, "terminated")) && !w.listening:
		return failed(guest.ReasonRegistrationError, "the runner could not connect: %s", said)
	case (exit == exitRetryable || exit == exitUpdating || exit == exitUpdatingEph || exit == exitConfigRefresh) &&
		w.restarts < maxRestarts && !w.ran:
		return nil
	default:
		return w.broken(exit)
	}
}

func (gitHub) credentials(c *guest.Config) []string {
	var out []string

	for _, name := range []string{".runner", ".runner_migrated", ".credentials", ".credentials_migrated", ".credentials_rsaparams"} {
		out = append(out, filepath.Join(c.Runner.InstallPath, name))
	}

	return out
}
