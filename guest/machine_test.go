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
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
	"github.com/hyperfleet/hyperfleet/test/capture"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Credentials of the tests; none may ever be seen in a log.
const (
	jitBlob     = "jit-blob-secret"
	runnerToken = "runner-token-secret"
	reportToken = "report-token-secret"
	claimCode   = "claim-code-secret"
)

// patience bounds waits for things that happen at once or never.
const patience = time.Minute

// fakeClock stands still until a test lets one of its timers end.
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

// waited says whether somebody waits for d.
func (c *fakeClock) waited(d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.timers[d] != nil
}

// fire waits until somebody waits for d, and ends that wait.
func (c *fakeClock) fire(t *testing.T, d time.Duration) {
	t.Helper()

	eventually(t, "a timer of "+d.String(), func() bool {
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

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()

	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
}

// machine is a root directory with a runner in it.
type machine struct {
	root  string
	cfg   api.Config
	clock *fakeClock
	log   *capture.Buffer
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

// write puts a file below the root; scripts get their first line.
func (m *machine) write(t *testing.T, file, text string) {
	t.Helper()

	if strings.HasSuffix(file, ".sh") {
		text = "#!/bin/sh\n" + text + "\n"
	}

	if err := os.MkdirAll(filepath.Dir(m.path(file)), 0o755); err != nil {
		t.Fatal(err)
	}

	// A child that another test starts meanwhile would keep the file open for writing, and
	// nothing could run it ("text file busy").
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

func (m *machine) gone(t *testing.T, file string) {
	t.Helper()

	if _, err := os.Lstat(m.path(file)); err == nil {
		t.Errorf("%s is still there", file)
	}
}

// start writes the configuration and runs the service; the result comes once.
func (m *machine) start(t *testing.T, ctx context.Context) <-chan api.Report { //nolint:revive // t first, as in all helpers here
	t.Helper()

	data, err := json.Marshal(m.cfg)
	if err != nil {
		t.Fatal(err)
	}

	m.write(t, api.ConfigPath, string(data))

	return m.startAsIs(t, ctx)
}

func (m *machine) startAsIs(t *testing.T, ctx context.Context) <-chan api.Report { //nolint:revive // as above
	t.Helper()

	result := make(chan api.Report, 1)
	service := guest.New(m.options())

	go func() { result <- service.Run(ctx) }()

	return result
}

func (m *machine) options() guest.Options {
	return guest.Options{Root: m.root, Clock: m.clock, Log: slog.New(slog.NewJSONHandler(m.log, nil))}
}

// end waits for the service's end and checks what every end has in common.
func (m *machine) end(t *testing.T, result <-chan api.Report) api.Report {
	t.Helper()

	select {
	case r := <-result:
		m.common(t, r)

		return r
	case <-time.After(patience):
		t.Fatalf("the service does not end:\n%s", m.log)

		return api.Report{}
	}
}

func (m *machine) common(t *testing.T, r api.Report) {
	t.Helper()

	for _, secret := range []string{jitBlob, runnerToken, reportToken, claimCode} {
		if strings.Contains(m.log.String(), secret) || strings.Contains(r.Message+r.Log, secret) {
			t.Errorf("a credential is in the log:\n%s\n%+v", m.log, r)
		}
	}

	m.gone(t, api.ConfigPath)
	m.gone(t, "/opt/actions-runner/.credentials")
	m.gone(t, "/tmp/runner-work")

	if got := m.status(t); got != r {
		t.Errorf("status file %+v, last report %+v", got, r)
	}

	if r.Phase != api.PhaseFinished && r.Phase != api.PhaseFailed || r.Reason == "" || r.Message == "" {
		t.Errorf("last report %+v", r)
	}
}

func (m *machine) status(t *testing.T) api.Report {
	t.Helper()

	var got api.Report
	if err := json.Unmarshal([]byte(m.read(t, api.StatusPath)), &got); err != nil {
		t.Fatal(err)
	}

	return got
}

// phases are those in the log, in order.
func (m *machine) phases() string {
	var got []string

	for line := range strings.SplitSeq(m.log.String(), "\n") {
		var entry struct{ Msg, Phase string }
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(entry.Msg, "hyperfleet: phase=") {
			got = append(got, entry.Phase)
		}
	}

	return strings.Join(got, " ")
}

// waitPhase waits until a phase was reported.
func (m *machine) waitPhase(t *testing.T, phase api.Phase) {
	t.Helper()

	eventually(t, "phase "+string(phase), func() bool { return strings.Contains(m.phases(), string(phase)) })
}
