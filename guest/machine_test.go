// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Credentials of the tests. No log may contain one of them.
const (
	jitBlob     = "jit-blob-secret"
	runnerToken = "runner-token-secret"
	reportToken = "report-token-secret"
	claimCode   = "claim-code-secret"
)

// waitTimeout limits every wait. A wait that succeeds is much shorter.
const waitTimeout = time.Minute

// fakeClock is a clock whose timers fire only when a test calls waitAndFire.
type fakeClock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[time.Duration]chan time.Time
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), timers: map[time.Duration]chan time.Time{}}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.now
}

func (c *fakeClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	ch := make(chan time.Time, 1)
	c.timers[d] = ch

	return ch
}

// hasTimer returns whether a timer of duration d exists.
func (c *fakeClock) hasTimer(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.timers[d] != nil
}

// waitAndFire waits until a timer of duration d exists, and fires it.
func (c *fakeClock) waitAndFire(t *testing.T, d time.Duration) {
	t.Helper()

	timing.WaitUntil(t, "a timer of "+d.String()+" exists", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()

		ch, ok := c.timers[d]
		if ok {
			delete(c.timers, d)

			c.now = c.now.Add(d)
			ch <- c.now
		}

		return ok
	})
}

// machine is the root directory of a machine, with a runner.
type machine struct {
	root  string
	cfg   api.Config
	clock *fakeClock
	log   *capture.Buffer
	// powerOffs counts how often the service powered the machine off.
	powerOffs atomic.Int32
}

func newMachine(t *testing.T) *machine {
	t.Helper()

	return &machine{
		root: t.TempDir(), clock: newFakeClock(), log: &capture.Buffer{},
		cfg: api.Config{
			Method: api.MethodRunnerToken, Platform: "github-actions", JITConfig: jitBlob, RunnerName: "ci-1",
			Labels: []string{"self-hosted", "linux"},
		},
	}
}

func (m *machine) path(p string) string { return filepath.Join(m.root, p) }

// runScript is the runner's script.
const runScript = "/opt/actions-runner/run.sh"

// write creates a file below the root. A file whose name ends with .sh is a script.
func (m *machine) write(t *testing.T, file, text string) {
	t.Helper()

	if strings.HasSuffix(file, ".sh") {
		file, text = newScript(file, text)
	}

	if err := os.MkdirAll(filepath.Dir(m.path(file)), 0o755); err != nil {
		t.Fatal(err)
	}

	// A child process of another test could inherit the open file. Then the file could not be executed ("text
	// file busy").
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	if err := os.WriteFile(m.path(file), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) read(t *testing.T, file string) string {
	t.Helper()

	data, err := os.ReadFile(m.path(file))
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

func (m *machine) requireDeleted(t *testing.T, file string) {
	t.Helper()

	if _, err := os.Lstat(m.path(file)); err == nil {
		t.Errorf("%s is still there", file)
	}
}

// start writes the configuration and runs the service. The channel gets the last report.
func (m *machine) start(t *testing.T, ctx context.Context) <-chan api.Report { //nolint:revive // t comes first, as in all helpers
	t.Helper()
	m.writeConfig(t)

	return m.startWithoutConfig(t, ctx)
}

func (m *machine) writeConfig(t *testing.T) {
	t.Helper()

	data, err := json.Marshal(m.cfg)
	if err != nil {
		t.Fatal(err)
	}

	m.write(t, api.ConfigPath, string(data))
}

func (m *machine) startWithoutConfig(t *testing.T, ctx context.Context) <-chan api.Report { //nolint:revive // as above
	t.Helper()

	m.powerOffs.Store(0)

	result := make(chan api.Report, 1)
	service := guest.New(m.options())

	go func() { result <- service.Run(ctx) }()

	return result
}

func (m *machine) options() guest.Options {
	return guest.Options{
		Root: m.root, Clock: m.clock, Log: slog.New(slog.NewJSONHandler(m.log, nil)),
		PowerOff: func(context.Context) error {
			m.powerOffs.Add(1)

			return nil
		},
	}
}

// waitForEnd waits until the service ends, and checks what all ends have in common.
func (m *machine) waitForEnd(t *testing.T, result <-chan api.Report) api.Report {
	t.Helper()

	select {
	case r := <-result:
		m.checkEnd(t, r)

		return r
	case <-time.After(waitTimeout):
		t.Fatalf("the service did not end:\n%s", m.log)

		return api.Report{}
	}
}

func (m *machine) checkEnd(t *testing.T, r api.Report) {
	t.Helper()

	for _, secret := range []string{jitBlob, runnerToken, reportToken, claimCode} {
		if strings.Contains(m.log.String(), secret) || strings.Contains(r.Message+r.Log, secret) {
			t.Errorf("a credential is in the log:\n%s\n%+v", m.log, r)
		}
	}

	m.requireDeleted(t, api.ConfigPath)
	m.requireDeleted(t, "/opt/actions-runner/.credentials")
	m.requireDeleted(t, "/tmp/runner-work")

	if got := m.powerOffs.Load(); got != 1 {
		t.Errorf("the machine was powered off %d times, want once", got)
	}

	if got := m.readStatus(t); got != r {
		t.Errorf("status file %+v, last report %+v", got, r)
	}

	if r.Phase != api.PhaseFinished && r.Phase != api.PhaseFailed || r.Reason == "" || r.Message == "" {
		t.Errorf("last report %+v", r)
	}
}

func (m *machine) readStatus(t *testing.T) api.Report {
	t.Helper()

	var got api.Report
	if err := json.Unmarshal([]byte(m.read(t, api.StatusPath)), &got); err != nil {
		t.Fatal(err)
	}

	return got
}

// listPhases returns the phases in the log, in order.
func (m *machine) listPhases() string {
	var got []string

	for line := range strings.SplitSeq(m.log.String(), "\n") {
		var entry struct{ Msg, Phase string }
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, "hyperfleet: phase=") {
			got = append(got, entry.Phase)
		}
	}

	return strings.Join(got, " ")
}

// waitForPhase waits until the service has reported a phase.
func (m *machine) waitForPhase(t *testing.T, phase api.Phase) {
	t.Helper()

	timing.WaitUntil(t, "the phase "+string(phase)+" is reported", func() bool { return strings.Contains(m.listPhases(), string(phase)) })
}
