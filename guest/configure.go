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

// configure prepares the work directory and what the platform's runner needs.
func (s *Service) configure(ctx context.Context, cfg *guest.Config) error {
	s.report.report(guest.PhaseConfiguring, "")

	who, err := s.findAccount()
	if err != nil {
		return failed(guest.ReasonRunnerFailed, "%w", err)
	}

	work := s.path(cfg.Runner.WorkDir)
	if err := os.MkdirAll(work, 0o755); err != nil { //nolint:gosec // jobs of other accounts may need to enter it
		return failed(guest.ReasonRunnerFailed, "make work directory: %w", err)
	}

	if err := who.own(work); err != nil {
		return failed(guest.ReasonRunnerFailed, "give %s to user %s: %w", work, runnerUser, err)
	}

	return platformOf(cfg.Platform).prepare(ctx, s, cfg, who)
}

// command makes a command that ends with ctx, in a process group of its own.
func (s *Service) command(ctx context.Context, l launch, who *account) *exec.Cmd {
	cmd := exec.CommandContext(ctx, l.path, l.args...) //nolint:gosec // the configured runner
	cmd.Dir = l.dir
	cmd.Env = without(os.Environ(), inputPrefix, "SPIFFE_")

	if os.Getenv("PATH") == "" {
		cmd.Env = append(cmd.Env, setting("PATH", defaultPath))
	}

	cmd.Env = append(cmd.Env, s.environment...)

	if s.traceparent != "" {
		cmd.Env = append(without(cmd.Env, "TRACEPARENT"), setting("TRACEPARENT", s.traceparent))
	}

	cmd.Env = append(cmd.Env, l.env...)

	who.apply(cmd)
	cmd.WaitDelay = waitDelay
	cmd.Cancel = func() error { return signalGroup(cmd, killSignal) }

	return cmd
}

// traceparents are those of W3C Trace Context, with the trace's id.
var traceparents = regexp.MustCompile(`^00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$`)

// joinTrace has the log and the runner name the machine's trace.
func (s *Service) joinTrace(traceparent string) {
	if match := traceparents.FindStringSubmatch(traceparent); match != nil {
		s.traceparent = traceparent
		s.log = s.log.With("traceId", match[1])
	}
}

// defaultPath is what systemd gives its services.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

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
