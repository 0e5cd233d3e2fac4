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

// forgejo runs forgejo-runner for the one job that the machine was made for:
// `forgejo-runner one-job` (https://forgejo.org/docs/latest/admin/actions/).
type forgejo struct{ giteaWords }

// gitea runs act_runner with the settings of an ephemeral runner, which takes one job
// (https://docs.gitea.com/usage/actions/act-runner).
type gitea struct{ giteaWords }

// giteaWords are what the two programs, which have a past in common, share.
type giteaWords struct{}

const (
	defaultForgejoProgram = "/usr/bin/forgejo-runner"
	defaultGiteaProgram   = "/usr/bin/act_runner"
	// forgejoToken is where forgejo-runner reads its token, and giteaFile in the work
	// directory is where act_runner keeps all that it knows of itself.
	forgejoToken = "/opt/hyperfleet/runner-token" //nolint:gosec // the name of a file
	giteaFile    = ".runner"
	// giteaConfig in the work directory is written where there is something to say in it.
	giteaConfig = "config.yaml"
	// onHost is how a label says that jobs run in the machine itself, without a container.
	onHost = ":host"
)

// What the programs print.
var (
	giteaOnline  = regexp.MustCompile(`\bwith labels: .*declared? successfully`)
	giteaRunning = regexp.MustCompile(`\btask (\d+) repo is (\S+)`)
	giteaRefused = regexp.MustCompile(`unauthenticated: unregistered runner|rejected the runner as unregistered`)
)

func giteaCheck(c *guest.Config, program string) error {
	if c.Runner.Program == "" {
		c.Runner.Program = program
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

func (forgejo) check(c *guest.Config) error {
	if err := giteaCheck(c, defaultForgejoProgram); err != nil {
		return err
	}

	if c.JobID == "" {
		return errors.New("job_id is missing: the machine is for one job, by its handle")
	}

	return unused(c, "command", "env", "runner.download_url")
}

func (gitea) check(c *guest.Config) error {
	if err := giteaCheck(c, defaultGiteaProgram); err != nil {
		return err
	}

	return unused(c, "job_id", "command", "env", "runner.download_url")
}

func (giteaWords) program(c *guest.Config) string { return c.Runner.Program }

// prepare writes the token where the program reads it, and nobody else.
func (forgejo) prepare(_ context.Context, s *Service, c *guest.Config, who *account) error {
	// Its runner signs what it asks of a cache server with a secret that the server has too.
	// A job could read it in the machine, so that no such server is named here.
	if cache := actionsCache(c); cache != "" {
		s.log.Warn("the Actions cache is not used: that of Forgejo needs a secret", "url", cache)
	}

	return errors.Join(
		s.writeCredential(forgejoToken, []byte(c.RunnerToken), who), s.configureGitea(c, "", who))
}

// prepare writes the file that act_runner has after it has registered itself.
func (gitea) prepare(_ context.Context, s *Service, c *guest.Config, who *account) error {
	text, err := json.Marshal(map[string]any{
		"uuid": c.JITConfig, "name": c.RunnerName, "token": c.RunnerToken, "address": c.RegistrationURL,
		"labels": hostLabels(c.Labels), "ephemeral": true,
	})
	if err != nil {
		return failed(guest.ReasonRunnerFailed, "write the settings of the runner: %w", err)
	}

	return errors.Join(
		s.writeCredential(filepath.Join(c.Runner.WorkDir, giteaFile), text, who), s.configureGitea(c, actionsCache(c), who))
}

// configureGitea writes the program's configuration: a job gets what stands there, and
// nothing of the program's own environment.
func (s *Service) configureGitea(c *guest.Config, cache string, who *account) error {
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

	text, err := json.Marshal(config) // which is YAML, too
	if err != nil {
		return failed(guest.ReasonRunnerFailed, "write the configuration of the runner: %w", err)
	}

	return s.writeCredential(filepath.Join(c.Runner.WorkDir, giteaConfig), text, who)
}

// writeCredential writes a file of the machine that the runner's account alone can read.
func (s *Service) writeCredential(name string, text []byte, who *account) error {
	path := s.path(name)

	//nolint:gosec // the folder may be entered by anybody, the file not
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}

	if err == nil {
		err = who.own(path)
	}

	if err != nil {
		return failed(guest.ReasonRunnerFailed, "write %s: %w", name, err)
	}

	return nil
}

func hostLabels(labels []string) []string {
	out := make([]string, 0, len(labels))
	for _, label := range labels {
		out = append(out, label+onHost)
	}

	return out
}

func (forgejo) launch(s *Service, c *guest.Config) launch {
	out := giteaLaunch(s, c, "one-job", "--url", c.RegistrationURL, "--uuid", c.JITConfig,
		"--token-url", "file:"+s.path(forgejoToken), "--handle", c.JobID, "--wait")

	for _, label := range hostLabels(c.Labels) {
		out.args = append(out.args, "--label", label)
	}

	return out
}

func (gitea) launch(s *Service, c *guest.Config) launch { return giteaLaunch(s, c, "daemon") }

// giteaLaunch runs a program that ends, and cancels a job that it has, at either signal.
func giteaLaunch(s *Service, c *guest.Config, args ...string) launch {
	if config := s.path(filepath.Join(c.Runner.WorkDir, giteaConfig)); isFile(config) {
		args = append(args, "--config", config)
	}

	return launch{
		path: s.path(c.Runner.Program), args: args, dir: s.path(c.Runner.WorkDir), quit: syscall.SIGINT, abort: syscall.SIGINT,
	}
}

func (giteaWords) read(line string) (event, bool) {
	line = plain(line)

	switch {
	case giteaOnline.MatchString(line):
		return event{kind: eventListening}, true
	case giteaRunning.MatchString(line):
		match := giteaRunning.FindStringSubmatch(line)

		return event{kind: eventRunning, text: match[1] + " of " + match[2]}, true
	case giteaRefused.MatchString(line):
		return event{kind: eventRefused, text: giteaRefusal}, true
	default:
		return event{}, false
	}
}

const giteaRefusal = "the server does not accept the runner's token: the runner was removed, or has done its job"

// verdict: the programs end by themselves after their one job. They don't say how it went:
// the server knows.
func (giteaWords) verdict(w *watch, exit int) *end {
	switch {
	case w.ran && exit == exitOK:
		w.over = true

		return w.done()
	case !w.listening:
		return failed(guest.ReasonRegistrationError, "the runner could not connect (exit code %d): %s", exit, w.last.text())
	default:
		return w.broken(exit)
	}
}

func (forgejo) credentials(*guest.Config) []string { return []string{forgejoToken} }

func (gitea) credentials(c *guest.Config) []string {
	return []string{filepath.Join(c.Runner.WorkDir, giteaFile)}
}
