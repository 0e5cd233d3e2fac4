// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// releasePattern matches the line of the runner's output that names its release.
var releasePattern = regexp.MustCompile(`^\d{1,4}\.\d{1,4}\.\d{1,4}$`)

// versionTimeout is how long the runner may take to print its release.
const versionTimeout = 30 * time.Second

// checkVersion returns an error if the installed runner does not have the configured release, or cannot run. It returns
// nil if no release is configured.
func (s *Service) checkVersion(ctx context.Context, cfg *guest.Config) error {
	if cfg.Runner.Version == "" {
		return nil
	}

	version, err := s.readRunnerVersion(ctx, cfg)
	if err != nil {
		return err
	}

	if version != cfg.Runner.Version {
		return fmt.Errorf("the installed runner has the release %s", version)
	}

	return nil
}

// readRunnerVersion runs the runner's program (bin/Runner.Listener --version) and returns the release that it prints.
func (s *Service) readRunnerVersion(ctx context.Context, cfg *guest.Config) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, versionTimeout, errors.New("it took more than "+versionTimeout.String()))
	defer cancel()

	dir := s.path(cfg.Runner.InstallPath)
	program := filepath.Join(dir, "bin", "Runner.Listener"+executableSuffix)

	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("find the runner's program: %w", err)
	}

	// With ACTIONS_RUNNER_PRINT_LOG_TO_STDOUT, the runner also prints its log.
	last := &lastLines{}
	out := s.newLineWriter(func(line string) {
		if line = strings.TrimSpace(line); releasePattern.MatchString(line) {
			last.add(line)
		}
	})
	cmd := s.newCommand(ctx, launch{path: program, args: []string{"--version"}, dir: dir}, nil)
	cmd.Stdout = out

	// The kernel also sends Pdeathsig when the thread that started the program ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	err := startGroup(cmd)
	if err == nil {
		err = cmd.Wait()
		_ = signalGroup(cmd, killSignal)
	}

	out.flush()

	if err != nil {
		return "", fmt.Errorf("run %s: %w", program, errors.Join(err, context.Cause(ctx)))
	}

	version := last.text()
	if version == "" {
		return "", fmt.Errorf("run %s: it printed no release", program)
	}

	return version, nil
}

// removeRelease removes the programs of an installed runner. Its scripts are replaced by those of the download.
func removeRelease(dir string) error {
	for _, name := range []string{"bin", "externals"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove %s of the runner: %w", name, err)
		}
	}

	return nil
}
