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

// gitHub runs the runner of GitHub Actions (https://github.com/actions/runner): config.sh, if the runner has
// to be registered, and run.sh.
type gitHub struct{}

// Exit codes of the runner's listener. The runner's own run.sh replaces most of them with 0 and prints a text,
// so the service checks both the exit code and the text.
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

// Limits of the registration.
const (
	registerAttempts = 3
	registerTimeout  = 5 * time.Minute
)

// inputPrefix is the prefix of the environment variables for the runner's inputs.
const inputPrefix = "ACTIONS_RUNNER_INPUT_"

// Patterns of the output of the runner and its scripts.
var (
	lineListening = regexp.MustCompile(`(^|: )Listening for Jobs`)
	lineRunning   = regexp.MustCompile(`(?:^|: )Running job: (.*)`)
	lineCompleted = regexp.MustCompile(`(?:^|: )Job (.*) completed with result: (\w+)`)
	lineRestart   = regexp.MustCompile(`^"?Restarting runner\.{3}`) // run.cmd prints its texts in quotation marks
	lineVersion   = regexp.MustCompile(`(?:^|: )Current runner version: '(\d{1,4}\.\d{1,4}\.\d{1,4})'`)
	lineExit      = regexp.MustCompile(`(?i)exit with (terminated error|session conflict|deprecated version)`)
)

// terminalFailure matches responses of the forge after which a retry cannot succeed.
var terminalFailure = regexp.MustCompile(`(?i)not ?found|unauthorized|forbidden|\b40[0-9]\b|already (configured|exists)`)

func (gitHub) validate(c *guest.Config) error {
	switch {
	case c.JITConfig == "" && c.RunnerToken == "":
		return errors.New("the credential is missing: neither jit_config nor runner_token is set")
	case c.JITConfig == "" && c.RegistrationURL == "":
		return errors.New("registration_url is missing: runner_token requires it")
	}

	return rejectUnusedFields(c, "job_id", "command", "env", "runner.program")
}

func (gitHub) programPath(c *guest.Config) string {
	return filepath.Join(c.Runner.InstallPath, c.Runner.RunScript)
}

// prepare registers the runner with its token if it has no just-in-time config. It retries transient
// failures.
func (g gitHub) prepare(ctx context.Context, s *Service, c *guest.Config, runAs *account) error {
	dir := s.path(c.Runner.InstallPath)
	if err := runAs.chown(dir); err != nil {
		return newFailure(guest.ReasonRunnerFailed, "change owner of %s to user %s: %w", dir, runnerUser, err)
	}

	if c.JITConfig != "" {
		return nil
	}

	for attempt := 1; ; attempt++ {
		output, err := g.register(ctx, s, c, runAs)
		if err == nil {
			return nil
		}

		if ctx.Err() != nil || attempt == registerAttempts || terminalFailure.MatchString(output) {
			return newFailure(guest.ReasonRegistrationError, "register runner %s at %s: %w: %s",
				c.RunnerName, c.RegistrationURL, err, output)
		}

		s.log.Warn("the registration of the runner failed and is retried", "attempt", attempt, "error", err.Error())

		if err := sleep(ctx, s.clock, s.opts.RestartDelay); err != nil {
			return newFailure(guest.ReasonRegistrationError, "register runner %s: %w", c.RunnerName, err)
		}
	}
}

// register runs the configuration script and returns the last lines of its output.
func (g gitHub) register(ctx context.Context, s *Service, c *guest.Config, runAs *account) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, registerTimeout, errors.New("it took more than "+registerTimeout.String()))
	defer cancel()

	cmd := s.newCommand(ctx, g.newRegistration(s, c), runAs)
	last := &lastLines{}
	out := s.newOutputWriter(last.add)
	cmd.Stdout, cmd.Stderr = out, out

	// The kernel also sends Pdeathsig when the thread that started the script ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	err := startGroup(cmd)
	if err == nil {
		err = cmd.Wait()
		_ = signalGroup(cmd, killSignal) // processes that the script has left running
	}

	out.flush()

	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}

	return last.text(), err
}

// newRegistration returns how to run the configuration script.
func (g gitHub) newRegistration(s *Service, c *guest.Config) launch {
	out := g.newScriptLaunch(s, c, c.Runner.ConfigScript, "TOKEN", c.RunnerToken,
		"--unattended", "--ephemeral", "--disableupdate", "--replace")

	addInput(&out, "name", c.RunnerName)
	addInput(&out, "work", s.path(c.Runner.WorkDir))
	addInput(&out, "url", c.RegistrationURL)

	if len(c.Labels) > 0 { // the runner requires at least one label
		out.args = append(out.args, "--no-default-labels")
		addInput(&out, "labels", strings.Join(c.Labels, ","))
	}

	if c.RunnerGroup != "" {
		addInput(&out, "runnergroup", c.RunnerGroup)
	}

	return out
}

// newScriptLaunch returns how to run one of the runner's scripts. It passes the secret in an environment
// variable, because the runner accepts each of its inputs as ACTIONS_RUNNER_INPUT_<NAME>.
func (gitHub) newScriptLaunch(s *Service, c *guest.Config, script, secretInput, secret string, args ...string) launch {
	dir := s.path(c.Runner.InstallPath)
	out := launch{path: filepath.Join(dir, script), args: args, dir: dir}

	if secret != "" {
		out.env = append(out.env, formatVariable(inputPrefix+secretInput, secret))
	}

	if os.Geteuid() == 0 {
		out.env = append(out.env, "RUNNER_ALLOW_RUNASROOT=1") // other users ignore it
	}

	return out
}

func (g gitHub) newLaunch(s *Service, c *guest.Config) launch {
	out := g.newScriptLaunch(s, c, c.Runner.RunScript, "JITCONFIG", c.JITConfig)
	out.hasHooks = true
	// At SIGINT, the runner cancels its job, if it has one, and ends its session.
	out.quit, out.abort = syscall.SIGINT, syscall.SIGINT
	// With this setting, run.sh reports that the forge has refused the runner's version.
	out.env = append(out.env, "ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1")

	// Runners that are built to support another cache read CUSTOM_ACTIONS_RESULTS_URL. ACTIONS_RESULTS_URL
	// reaches actions only if the runner is patched not to overwrite it
	// (https://gha-cache-server.falcondev.io/getting-started). GitHub's own runner overwrites it.
	if cache := actionsCacheURL(c); cache != "" {
		out.env = append(out.env, formatVariable("CUSTOM_ACTIONS_RESULTS_URL", cache), formatVariable("ACTIONS_RESULTS_URL", cache))
	}

	return out
}

func (gitHub) parseLine(line string) (event, bool) {
	switch {
	case lineListening.MatchString(line):
		return event{kind: eventListening}, true
	case lineCompleted.MatchString(line):
		result := lineCompleted.FindStringSubmatch(line)[2]

		return event{kind: eventCompleted, text: result, result: toGitHubConclusion(result)}, true
	case lineRunning.MatchString(line):
		return event{kind: eventRunning, text: strings.TrimSpace(lineRunning.FindStringSubmatch(line)[1])}, true
	case lineVersion.MatchString(line):
		return event{kind: eventVersion, text: lineVersion.FindStringSubmatch(line)[1]}, true
	case lineRestart.MatchString(line):
		return event{kind: eventRestart}, true
	case lineExit.MatchString(line):
		return event{kind: eventExitReason, text: strings.ToLower(lineExit.FindStringSubmatch(line)[1])}, true
	default:
		return event{}, false
	}
}

// toGitHubConclusion converts a result that the runner prints (TaskResult in the runner's sources) to the
// conclusion in GitHub's API.
func toGitHubConclusion(result string) string {
	switch result {
	case "Succeeded", "SucceededWithIssues":
		return "success"
	case "Failed":
		return "failure"
	case "Canceled":
		return "cancelled"
	default:
		return strings.ToLower(result)
	}
}

func (gitHub) endAfterExit(w *runnerWatch, code int) *endError {
	output := w.lastOutput.text()

	switch {
	case code == exitConflict, strings.Contains(w.exitReason, "session conflict"):
		return newFailure(guest.ReasonRegistrationError, "another runner is connected as %s: %s", w.cfg.RunnerName, output)
	case code == exitDeprecated, strings.Contains(w.exitReason, "deprecated"):
		return newFailure(guest.ReasonRunnerFailed,
			"the forge does not accept this version of the runner, install a newer one in the image: %s", output)
	case (code == exitTerminated || strings.Contains(w.exitReason, "terminated")) && !w.wasOnline:
		return newFailure(guest.ReasonRegistrationError, "the runner could not connect: %s", output)
	case (code == exitRetryable || code == exitUpdating || code == exitUpdatingEph || code == exitConfigRefresh) &&
		w.restarts < maxRestarts && !w.hasJobStarted:
		return nil // restart the runner
	default:
		return w.newUnexpectedExit(code)
	}
}

func (gitHub) credentialFiles(c *guest.Config) []string {
	var out []string

	for _, name := range []string{".runner", ".runner_migrated", ".credentials", ".credentials_migrated", ".credentials_rsaparams"} {
		out = append(out, filepath.Join(c.Runner.InstallPath, name))
	}

	return out
}
