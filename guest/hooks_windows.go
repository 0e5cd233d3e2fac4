// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Paths of the runner's hooks and of the file that the hook creates.
const (
	hooksDir       = `/ProgramData/HyperFleet/hooks`
	jobStartedPath = `/ProgramData/HyperFleet/job-started`
)

// hookInterval is how often the service looks for the file of the hook.
const hookInterval = 250 * time.Millisecond

// hooks finds out from a file that a job has started. The end of a job is only visible in the runner's output. The
// file is a second source besides that output. A job can create the file too, so no important decision depends on the
// file alone.
type hooks struct {
	env        []string
	stop, done chan struct{}
}

// newHooks writes the script that the runner starts before a job, and calls handle when the script has run.
func (s *Service) newHooks(_ *account, handle func(line string)) (*hooks, error) {
	mark, dir := s.path(jobStartedPath), s.path(hooksDir)

	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the runner reads it
		return nil, fmt.Errorf("create directory of the runner's hooks: %w", err)
	}

	if err := os.Remove(mark); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("delete file of the runner's hook: %w", err)
	}

	file := filepath.Join(dir, "job-"+hookStarted+".ps1")
	script := "New-Item -ItemType File -Force -Path '" + strings.ReplaceAll(mark, "'", "''") + "' | Out-Null\r\nexit 0\r\n"

	if err := os.WriteFile(file, []byte(script), 0o644); err != nil { //nolint:gosec // the runner reads it
		return nil, fmt.Errorf("write hook: %w", err)
	}

	h := &hooks{env: []string{formatVariable(hookVariable, file)}, stop: make(chan struct{}), done: make(chan struct{})}

	go func() {
		defer close(h.done)

		ticks := time.NewTicker(hookInterval)
		defer ticks.Stop()

		for {
			select {
			case <-h.stop:
				return
			case <-ticks.C:
			}

			if isFile(mark) {
				handle(hookStarted)

				return
			}
		}
	}()

	return h, nil
}

// close stops the search for the file. It does nothing if h is nil.
func (h *hooks) close() {
	if h == nil {
		return
	}

	close(h.stop)
	<-h.done
}
