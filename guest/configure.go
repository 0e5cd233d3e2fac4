// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// configure creates the work directory and prepares the platform's runner.
func (s *Service) configure(ctx context.Context, cfg *guest.Config) error {
	s.reporter.reportPhase(guest.PhaseConfiguring, "")

	runAs, err := s.findAccount()
	if err != nil {
		return newFailure(guest.ReasonRunnerFailed, "%w", err)
	}

	work := s.path(cfg.Runner.WorkDir)
	if err := os.MkdirAll(work, 0o755); err != nil { //nolint:gosec // jobs of other accounts may have to access it
		return newFailure(guest.ReasonRunnerFailed, "create work directory: %w", err)
	}

	if err := runAs.chown(work); err != nil {
		return newFailure(guest.ReasonRunnerFailed, "change owner of %s to user %s: %w", work, runnerUser, err)
	}

	return platformFor(cfg.Platform).prepare(ctx, s, cfg, runAs)
}

// newCommand returns a command in its own process group. The group is killed when ctx is done.
func (s *Service) newCommand(ctx context.Context, l launch, runAs *account) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.path, l.args...) //nolint:gosec // the configured runner
	cmd.Dir = l.dir
	cmd.Env = withoutPrefixes(os.Environ(), inputPrefix, "SPIFFE_")

	if os.Getenv("PATH") == "" {
		cmd.Env = append(cmd.Env, formatVariable("PATH", defaultPath))
	}

	cmd.Env = append(cmd.Env, s.environment...)

	if s.traceparent != "" {
		cmd.Env = append(withoutPrefixes(cmd.Env, "TRACEPARENT"), formatVariable("TRACEPARENT", s.traceparent))
	}

	cmd.Env = append(cmd.Env, l.env...)

	runAs.applyTo(cmd)
	cmd.WaitDelay = waitDelay
	cmd.Cancel = func() error { return signalGroup(cmd, killSignal) }

	return cmd
}

// traceparentPattern matches a traceparent of W3C Trace Context and captures the trace ID.
var traceparentPattern = regexp.MustCompile(`^00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$`)

// setTrace passes the machine's trace to the log and to the runner. It ignores an invalid traceparent.
func (s *Service) setTrace(traceparent string) {
	if match := traceparentPattern.FindStringSubmatch(traceparent); match != nil {
		s.traceparent = traceparent
		s.log = s.log.With("traceId", match[1])
	}
}

// waitDelay is how long to wait for the end of the output if a process that is still running keeps it open.
const waitDelay = 5 * time.Second

// lastLines keeps the last lines of an output for error messages.
type lastLines struct {
	mu    sync.Mutex
	lines []string
}

const maxLastLines = 5

func (l *lastLines) add(line string) {
	if line = strings.TrimSpace(line); line == "" {
		return
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.lines = append(l.lines, line)
	l.lines = l.lines[max(0, len(l.lines)-maxLastLines):]
}

func (l *lastLines) text() string {
	const limit = 1000

	l.mu.Lock()
	defer l.mu.Unlock()

	text := strings.Join(l.lines, " | ")
	if len(text) > limit {
		text = fmt.Sprintf("%s [%d bytes more]", strings.ToValidUTF8(text[:limit], ""), len(text)-limit)
	}

	return text
}
