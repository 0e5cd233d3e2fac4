// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Paths of the runner's hooks and of the pipe to which they write. The scripts are not in /run, because
// systems can mount it with noexec.
const (
	hooksDir       = "/opt/hyperfleet/hooks"
	jobStartedPath = "/run/hyperfleet/jobs"
)

// hooks reads from the pipe that a job has started. The end of a job is only visible in the runner's output.
// The pipe is a second source besides that output. A job can write to the pipe too, so no important decision
// depends on the pipe alone.
type hooks struct {
	env  []string
	pipe *os.File
	done chan struct{}
}

// newHooks creates the pipe and the script, and calls handle with each line that the script writes.
func (s *Service) newHooks(runAs *account, handle func(line string)) (*hooks, error) {
	pipe, dir := s.path(jobStartedPath), s.path(hooksDir)

	//nolint:gosec // the runner's user reads it
	if err := errors.Join(os.MkdirAll(filepath.Dir(pipe), 0o755), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, fmt.Errorf("create directories of the runner's hooks: %w", err)
	}

	_ = os.Remove(pipe)

	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		return nil, fmt.Errorf("create pipe %s: %w", pipe, err)
	}

	if runAs != nil {
		if err := os.Chown(pipe, int(runAs.uid), int(runAs.gid)); err != nil {
			return nil, fmt.Errorf("change owner of pipe to user %s: %w", runnerUser, err)
		}
	}

	h := &hooks{done: make(chan struct{})}

	file := filepath.Join(dir, "job-"+hookStarted+".sh")
	// The script opens the pipe for reading and writing, so it never blocks, even if no process reads the
	// pipe.
	script := "#!/bin/sh\n[ -p '" + pipe + "' ] && echo " + hookStarted + " 1<>'" + pipe + "'\nexit 0\n"

	if err := os.WriteFile(file, []byte(script), 0o755); err != nil { //nolint:gosec // the runner's user runs it
		return nil, fmt.Errorf("write hook: %w", err)
	}

	h.env = append(h.env, formatVariable(hookVariable, file))

	f, err := os.OpenFile(pipe, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open pipe: %w", err)
	}

	h.pipe = f

	go func() {
		defer close(h.done)

		for lines := bufio.NewScanner(f); lines.Scan(); {
			handle(strings.TrimSpace(lines.Text()))
		}
	}()

	return h, nil
}

// close closes the pipe, and waits for the goroutine that reads the pipe to end. It does nothing if h is nil.
func (h *hooks) close() {
	if h == nil {
		return
	}

	_ = h.pipe.Close()
	<-h.done
}
