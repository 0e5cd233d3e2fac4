// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Bounds of the registration.
const (
	configureTries   = 3
	configureTimeout = 5 * time.Minute
)

// configure prepares the runner's directories and, where there is no JIT configuration,
// registers the runner with its token.
func (s *Service) configure(ctx context.Context, cfg *guest.Config) error {
	s.report.report(guest.PhaseConfiguring, "", "")

	who, err := s.findAccount()
	if err != nil {
		return failed(guest.ReasonRunnerFailed, "%w", err)
	}

	work := s.path(cfg.Runner.WorkDir)
	if err := os.MkdirAll(work, 0o755); err != nil { //nolint:gosec // jobs of other accounts may need to enter it
		return failed(guest.ReasonRunnerFailed, "make work directory: %w", err)
	}

	for _, dir := range []string{s.path(cfg.Runner.InstallPath), work} {
		if err := who.own(dir); err != nil {
			return failed(guest.ReasonRunnerFailed, "give %s to user %s: %w", dir, runnerUser, err)
		}
	}

	if cfg.JITConfig != "" {
		return nil
	}

	return s.register(ctx, cfg, who)
}

// refused are answers of the forge that another try does not change.
var refused = regexp.MustCompile(`(?i)not ?found|unauthorized|forbidden|\b40[0-9]\b|already (configured|exists)`)

func (s *Service) register(ctx context.Context, cfg *guest.Config, who *account) error {
	for try := 1; ; try++ {
		said, err := s.registerOnce(ctx, cfg, who)
		if err == nil {
			return nil
		}

		if ctx.Err() != nil || try == configureTries || refused.MatchString(said) {
			return failed(guest.ReasonRegistrationError, "register runner %s at %s: %w: %s",
				cfg.RunnerName, cfg.RegistrationURL, err, said)
		}

		s.log.Warn("the runner could not be registered, another try follows", "try", try, "error", err.Error())

		if err := pause(ctx, s.clock, s.opts.RestartPause); err != nil {
			return failed(guest.ReasonRegistrationError, "register runner %s: %w", cfg.RunnerName, err)
		}
	}
}

// registerOnce runs the configuration script and gives the last of what it said.
func (s *Service) registerOnce(ctx context.Context, cfg *guest.Config, who *account) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, configureTimeout, errors.New("no end after "+configureTimeout.String()))
	defer cancel()

	args := []string{"--unattended", "--ephemeral", "--disableupdate", "--replace", "--name", cfg.RunnerName,
		"--work", s.path(cfg.Runner.WorkDir), "--url", cfg.RegistrationURL}
	if len(cfg.Labels) > 0 { // a runner needs at least one
		args = append(args, "--no-default-labels", "--labels", strings.Join(cfg.Labels, ","))
	}

	if cfg.RunnerGroup != "" {
		args = append(args, "--runnergroup", cfg.RunnerGroup)
	}

	cmd := s.command(ctx, cfg, who, cfg.Runner.ConfigScript, args, "TOKEN", cfg.RunnerToken)
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

// command makes a command of the runner. Its secret goes by environment, as the runner
// takes every input as ACTIONS_RUNNER_INPUT_NAME: the argument list is for all to see.
func (s *Service) command(
	ctx context.Context, cfg *guest.Config, who *account, script string, args []string, input, secret string,
) *exec.Cmd {
	dir := s.path(cfg.Runner.InstallPath)
	cmd := exec.CommandContext(ctx, filepath.Join(dir, script), args...) //nolint:gosec // the configured runner
	cmd.Dir = dir

	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, inputPrefix) {
			cmd.Env = append(cmd.Env, e)
		}
	}

	if os.Getenv("PATH") == "" {
		cmd.Env = append(cmd.Env, defaultPath)
	}

	if secret != "" {
		cmd.Env = append(cmd.Env, inputPrefix+input+"="+secret)
	}

	who.apply(cmd)
	cmd.WaitDelay = waitDelay
	cmd.Cancel = func() error { return signalGroup(cmd, killSignal) }

	return cmd
}

// defaultPath is what systemd gives its services.
const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// inputPrefix begins the variables by which the runner takes its inputs.
const inputPrefix = "ACTIONS_RUNNER_INPUT_"

// waitDelay is how long output is awaited that a left-over process holds open.
const waitDelay = 5 * time.Second

// lastLines keeps the last lines of an output for an error's text.
type lastLines struct {
	mu   sync.Mutex
	kept []string
}

const keptLines = 5

func (l *lastLines) add(line string) {
	if line = strings.TrimSpace(line); line == "" {
		return
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.kept = append(l.kept, line)
	l.kept = l.kept[max(0, len(l.kept)-keptLines):]
}

func (l *lastLines) text() string {
	const limit = 1000

	l.mu.Lock()
	defer l.mu.Unlock()

	text := strings.Join(l.kept, " | ")
	if len(text) > limit {
		text = fmt.Sprintf("%s [%d bytes more]", strings.ToValidUTF8(text[:limit], ""), len(text)-limit)
	}

	return text
}
