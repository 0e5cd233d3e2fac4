// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// forgejo runs forgejo-runner for the one job that the machine was created for:
// `forgejo-runner one-job` (https://forgejo.org/docs/latest/admin/actions/).
type forgejo struct{ giteaCommon }

// gitea runs act_runner with the settings of an ephemeral runner, which runs one job
// (https://docs.gitea.com/usage/actions/act-runner).
type gitea struct{ giteaCommon }

// giteaCommon implements the methods that are the same for both programs, which have a common origin.
type giteaCommon struct{}

const (
	defaultForgejoProgram = "/usr/bin/forgejo-runner"
	defaultGiteaProgram   = "/usr/bin/act_runner"
	// forgejoTokenFile is the file from which forgejo-runner reads its token. giteaRunnerFile is the file in
	// the work directory in which act_runner keeps its registration.
	forgejoTokenFile = "/opt/hyperfleet/runner-token" //nolint:gosec // the name of a file
	giteaRunnerFile  = ".runner"
	// giteaConfigFile is the configuration file in the work directory. It is only written if it has content.
	giteaConfigFile = "config.yaml"
	// hostLabelSuffix marks labels whose jobs run in the machine itself, without a container.
	hostLabelSuffix = ":host"
)

// Patterns of the programs' output.
var (
	giteaOnline  = regexp.MustCompile(`\bwith labels: .*declared? successfully`)
	giteaRunning = regexp.MustCompile(`\btask (\d+) repo is (\S+)`)
	giteaRefused = regexp.MustCompile(`unauthenticated: unregistered runner|rejected the runner as unregistered`)
)

func validateGitea(c *guest.Config, program string) error {
	if c.Runner.Program == "" {
		c.Runner.Program = nativeProgram(program)
	}

	switch {
	case c.RunnerToken == "":
		return errors.New("the credential is missing: runner_token is not set")
	case c.JITConfig == "":
		return errors.New("jit_config is missing: it is the UUID of the runner")
	case c.RegistrationURL == "":
		return errors.New("registration_url is missing: it is the URL of the instance")
	}

	return nil
}

func (forgejo) validate(c *guest.Config) error {
	if err := validateGitea(c, defaultForgejoProgram); err != nil {
		return err
	}

	if c.JobID == "" {
		return errors.New("job_id is missing: the machine runs one job, which the handle identifies")
	}

	return rejectUnusedFields(c, "command", "env", "runner.download_url")
}

func (gitea) validate(c *guest.Config) error {
	if err := validateGitea(c, defaultGiteaProgram); err != nil {
		return err
	}

	return rejectUnusedFields(c, "job_id", "command", "env", "runner.download_url")
}

func (giteaCommon) programPath(c *guest.Config) string { return c.Runner.Program }

// prepare writes the token to a file that only the runner's account can read.
func (forgejo) prepare(_ context.Context, s *Service, c *guest.Config, runAs *account) error {
	// Forgejo's runner signs its requests to a cache server with a secret that it shares with the server. A
	// job could read that secret in the machine, so no cache server is configured.
	if cache := actionsCacheURL(c); cache != "" {
		s.log.Warn("the Actions cache is not used because Forgejo's runner needs a secret for it", "url", cache)
	}

	return errors.Join(
		s.writeCredential(forgejoTokenFile, []byte(c.RunnerToken), runAs), s.configureGitea(c, "", runAs))
}

// prepare writes the file that act_runner writes when it registers itself.
func (gitea) prepare(_ context.Context, s *Service, c *guest.Config, runAs *account) error {
	text, err := json.Marshal(map[string]any{
		"uuid": c.JITConfig, "name": c.RunnerName, "token": c.RunnerToken, "address": c.RegistrationURL,
		"labels": formatHostLabels(c.Labels), "ephemeral": true,
	})
	if err != nil {
		return newFailure(guest.ReasonRunnerFailed, "encode the settings of the runner: %w", err)
	}

	return errors.Join(
		s.writeCredential(filepath.Join(c.Runner.WorkDir, giteaRunnerFile), text, runAs),
		s.configureGitea(c, actionsCacheURL(c), runAs))
}

// configureGitea writes the program's configuration if it has content. It contains the environment of jobs,
// because a job does not inherit the program's own environment.
func (s *Service) configureGitea(c *guest.Config, cache string, runAs *account) error {
	config := map[string]any{}

	if len(c.Environment) > 0 {
		config["runner"] = map[string]any{"envs": c.Environment}
	}

	if cache != "" {
		config["cache"] = map[string]any{"enabled": true, "external_server": cache}
	}

	if len(config) == 0 {
		return nil
	}

	text, err := json.Marshal(config) // JSON is also YAML
	if err != nil {
		return newFailure(guest.ReasonRunnerFailed, "encode the configuration of the runner: %w", err)
	}

	return s.writeCredential(filepath.Join(c.Runner.WorkDir, giteaConfigFile), text, runAs)
}

// writeCredential writes a file that only the runner's account can read.
func (s *Service) writeCredential(name string, text []byte, runAs *account) error {
	path := s.path(name)

	//nolint:gosec // everyone may enter the directory, but not read the file
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}

	if err == nil {
		err = runAs.chown(path)
	}

	if err != nil {
		return newFailure(guest.ReasonRunnerFailed, "write %s: %w", name, err)
	}

	return nil
}

func formatHostLabels(labels []string) []string {
	out := make([]string, 0, len(labels))
	for _, label := range labels {
		out = append(out, label+hostLabelSuffix)
	}

	return out
}

func (forgejo) newLaunch(s *Service, c *guest.Config) launch {
	out := newGiteaLaunch(s, c, "one-job", "--url", c.RegistrationURL, "--uuid", c.JITConfig,
		"--token-url", formatFileURL(s.path(forgejoTokenFile)), "--handle", c.JobID, "--wait")

	for _, label := range formatHostLabels(c.Labels) {
		out.args = append(out.args, "--label", label)
	}

	return out
}

func (gitea) newLaunch(s *Service, c *guest.Config) launch { return newGiteaLaunch(s, c, "daemon") }

// newGiteaLaunch returns how to run the program. The program cancels its job and exits at SIGINT.
func newGiteaLaunch(s *Service, c *guest.Config, args ...string) launch {
	if config := s.path(filepath.Join(c.Runner.WorkDir, giteaConfigFile)); isFile(config) {
		args = append(args, "--config", config)
	}

	return launch{
		path: s.path(c.Runner.Program), args: args, dir: s.path(c.Runner.WorkDir), quit: syscall.SIGINT, abort: syscall.SIGINT,
	}
}

func (giteaCommon) parseLine(line string) (event, bool) {
	line = stripANSI(line)

	switch {
	case giteaOnline.MatchString(line):
		return event{kind: eventListening}, true
	case giteaRunning.MatchString(line):
		match := giteaRunning.FindStringSubmatch(line)

		return event{kind: eventRunning, text: match[1] + " of " + match[2]}, true
	case giteaRefused.MatchString(line):
		return event{kind: eventRejected, text: giteaRefusal}, true
	default:
		return event{}, false
	}
}

const giteaRefusal = "the server does not accept the runner's token: the runner was deleted or has already run its job"

// endAfterExit returns the end of the machine. The programs exit with code 0 after their one job. They do not
// print the job's result, which only the server knows.
func (giteaCommon) endAfterExit(w *runnerWatch, code int) *endError {
	switch {
	case w.hasJobStarted && code == exitOK:
		w.hasJobFinished = true

		return w.newJobDone()
	case !w.wasOnline:
		return newFailure(guest.ReasonRegistrationError, "the runner could not connect (exit code %d): %s", code, w.lastOutput.text())
	default:
		return w.newUnexpectedExit(code)
	}
}

func (forgejo) credentialFiles(*guest.Config) []string { return []string{forgejoTokenFile} }

func (gitea) credentialFiles(c *guest.Config) []string {
	return []string{filepath.Join(c.Runner.WorkDir, giteaRunnerFile)}
}
