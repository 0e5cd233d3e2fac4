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

// Where the runner's hooks are, and the pipe by which they tell of jobs. Scripts are not
// in /run, which systems mount without leave to execute.
const (
	hooksDir = "/opt/hyperfleet/hooks"
	jobPipe  = "/run/hyperfleet/jobs"
)

// hookStarted is the word that the hook writes into the pipe.
const hookStarted = "started"

// hooks tell of jobs the moment they begin; their ends are told by the runner alone. They are a
// second source beside the runner's output: a job can write into the pipe as well, so nothing
// that matters hangs on them alone.
type hooks struct {
	env  []string
	pipe *os.File
	done chan struct{}
}

// newHooks writes the script and calls seen with each word it sends.
func (s *Service) newHooks(who *account, seen func(word string)) (*hooks, error) {
	pipe, dir := s.path(jobPipe), s.path(hooksDir)

	//nolint:gosec // read by the runner's user
	if err := errors.Join(os.MkdirAll(filepath.Dir(pipe), 0o755), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, fmt.Errorf("make directories of the runner's hooks: %w", err)
	}

	_ = os.Remove(pipe)

	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		return nil, fmt.Errorf("make pipe %s: %w", pipe, err)
	}

	if who != nil {
		if err := os.Chown(pipe, int(who.uid), int(who.gid)); err != nil {
			return nil, fmt.Errorf("give pipe to user %s: %w", runnerUser, err)
		}
	}

	h := &hooks{done: make(chan struct{})}

	file := filepath.Join(dir, "job-"+hookStarted+".sh")
	// Opened for reading and writing it never blocks, even if nobody listens.
	script := "#!/bin/sh\n[ -p '" + pipe + "' ] && echo " + hookStarted + " 1<>'" + pipe + "'\nexit 0\n"

	if err := os.WriteFile(file, []byte(script), 0o755); err != nil { //nolint:gosec // run by the runner's user
		return nil, fmt.Errorf("write hook: %w", err)
	}

	h.env = append(h.env, "ACTIONS_RUNNER_HOOK_JOB_STARTED="+file)

	f, err := os.OpenFile(pipe, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open pipe: %w", err)
	}

	h.pipe = f

	go func() {
		defer close(h.done)

		for lines := bufio.NewScanner(f); lines.Scan(); {
			seen(strings.TrimSpace(lines.Text()))
		}
	}()

	return h, nil
}

// close ends the listening.
func (h *hooks) close() {
	if h == nil {
		return
	}

	_ = h.pipe.Close()
	<-h.done
}
