// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlabtest

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/simrunner"
)

// Defaults that New fills into empty options.
const (
	Project = "gitlab-org/ci/gitlab-test"
	Group   = "gitlab-org"
	Token   = "glpat-simulatedaccesstoken"
)

// Server is a simulator served on loopback.
type Server struct {
	*gitlab.Server

	URL        string // without a slash at its end
	ControlURL string

	t testing.TB
}

// New starts a simulator that stops with the test. Empty options get one project Project
// and a token Token of an administrator with the scopes that runners need. Violations
// that are left at the end fail the test; use ExpectViolations for those a test provokes.
func New(t testing.TB, opts gitlab.Options) *Server {
	t.Helper()
	if len(opts.Projects) == 0 {
		opts.Projects = []gitlab.Project{{Path: Project}}
	}
	if len(opts.Tokens) == 0 {
		opts.Tokens = []gitlab.Token{{Token: Token, Admin: true, Scopes: []string{"read_api", "create_runner", "manage_runner"}}}
	}
	sim, err := gitlab.New(opts)
	if err != nil {
		t.Fatalf("start simulated GitLab: %v", err)
	}
	s := &Server{Server: sim, t: t}
	api, ctl := httptest.NewServer(sim.Handler()), httptest.NewServer(sim.Control())
	s.URL, s.ControlURL = api.URL, ctl.URL
	sim.SetURL(api.URL)
	t.Cleanup(func() {
		sim.Close()
		api.Close()
		ctl.Close()
		for _, v := range sim.Violations() {
			t.Errorf("GitLab contract violated (%s) %s %s: %s", v.Kind, v.Method, v.Path, v.Message)
		}
	})
	return s
}

// ExpectViolations takes the violations so far and fails unless there are n.
func (s *Server) ExpectViolations(t testing.TB, n int) []control.Violation {
	t.Helper()
	got := s.TakeViolations()
	if len(got) != n {
		t.Fatalf("violations: got %d, want %d: %v", len(got), n, got)
	}
	return got
}

// Queue adds jobs and fails the test when they are refused.
func (s *Server) Queue(spec control.JobSpec) []control.Job {
	s.t.Helper()
	if spec.Repo == "" {
		spec.Repo = Project
	}
	jobs, err := s.Server.Queue(spec)
	if err != nil {
		s.t.Fatalf("queue jobs: %v", err)
	}
	return jobs
}

// Eventually polls until cond holds; it fails the test after 20 s.
func (s *Server) Eventually(what string, cond func(control.State) bool) control.State {
	s.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		state := s.State()
		if cond(state) {
			return state
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("timed out waiting until %s; state: %+v", what, state)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Runner is a stand-in runner inside the test process.
type Runner struct {
	Stop func() // as a signal would
	done chan int
	out  *lockedBuffer
}

// Wait returns the exit code.
func (r *Runner) Wait() int { return <-r.done }

// Output is what the runner has printed so far.
func (r *Runner) Output() string { return r.out.String() }

// StartRunner runs the stand-in for one job of the server, with more options.
func (s *Server) StartRunner(t testing.TB, token string, more ...string) *Runner {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &Runner{Stop: cancel, done: make(chan int, 1), out: &lockedBuffer{}}
	program := simrunner.Program{
		Stdout: r.out, Stderr: r.out, Check: 10 * time.Millisecond, Unhealthy: 10 * time.Millisecond,
		Getenv: func(name string) string { return map[string]string{"CI_SERVER_TOKEN": token}[name] },
	}
	args := append([]string{
		"run-single", "--max-builds", "1", "--executor", "shell", "--url", s.URL, "--builds-dir", t.TempDir(),
	}, more...)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		r.done <- program.Main(ctx, args)
	}()
	t.Cleanup(func() { cancel(); <-finished })
	return r
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Receiver records webhooks.
type Receiver struct {
	URL string

	mu   sync.Mutex
	got  []Webhook
	code int
}

// Webhook is one delivery as received.
type Webhook struct {
	Header http.Header
	Body   []byte
}

// NewReceiver listens for webhooks on loopback and answers 202.
func NewReceiver(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{code: http.StatusAccepted}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, Webhook{Header: req.Header, Body: body.Bytes()})
		w.WriteHeader(r.code)
	}))
	t.Cleanup(server.Close)
	r.URL = server.URL
	return r
}

// Answer sets the status code of later answers.
func (r *Receiver) Answer(code int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.code = code
}

// Received returns what came so far.
func (r *Receiver) Received() []Webhook {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Webhook(nil), r.got...)
}
