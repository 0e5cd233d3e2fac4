// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkitetest

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/simagent"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Defaults that New fills into empty options.
const (
	Organization = "acme"
	Repo         = "acme/app"
	Queue        = "default"
	Token        = "bkct_simulatedclusteragenttoken0000000" // opens nothing but the simulator
)

// Server is a simulator served on loopback.
type Server struct {
	*buildkite.Server

	Endpoint   string // of the agent API, with /v3
	ControlURL string

	t testing.TB
}

// New starts a simulator that stops with the test. Empty options get one token Token.
// Violations that are left at the end fail the test; use ExpectViolations for those that a
// test provokes.
func New(t testing.TB, opts buildkite.Options) *Server {
	t.Helper()
	if len(opts.Tokens) == 0 {
		opts.Tokens = []string{Token}
	}
	sim, err := buildkite.New(opts)
	if err != nil {
		t.Fatalf("start simulated Buildkite: %v", err)
	}
	s := &Server{Server: sim, t: t}
	api, ctl := httptest.NewServer(sim.Handler()), httptest.NewServer(sim.Control())
	s.Endpoint, s.ControlURL = api.URL+"/v3", ctl.URL
	t.Cleanup(func() {
		sim.Close()
		api.Close()
		ctl.Close()
		for _, v := range sim.Violations() {
			t.Errorf("Buildkite contract violated (%s) %s %s: %s", v.Kind, v.Method, v.Path, v.Message)
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
		spec.Repo = Repo
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

// Agent is a stand-in agent inside the test process.
type Agent struct {
	Stop  func() // as SIGTERM would
	Abort func() // as SIGQUIT would
	done  chan int
	out   *lockedBuffer
}

// Wait returns the exit code.
func (a *Agent) Wait() int { return <-a.done }

// Output is what the agent has printed so far.
func (a *Agent) Output() string { return a.out.String() }

// StartAgent runs the stand-in buildkite-agent for a job, with a token, in a folder of its
// own. More variables may override its environment.
func (s *Server) StartAgent(t testing.TB, job, token string, env map[string]string) *Agent {
	t.Helper()
	all := map[string]string{
		"BUILDKITE_AGENT_TOKEN": token, "BUILDKITE_AGENT_ENDPOINT": s.Endpoint, "BUILDKITE_BUILD_PATH": t.TempDir(),
		"BUILDKITE_AGENT_NAME": "agent-1", "BUILDKITE_AGENT_TAGS": "queue=" + Queue,
	}
	maps.Copy(all, env)
	ctx, cancel := context.WithCancel(t.Context())
	abort := make(chan struct{})
	a := &Agent{Stop: cancel, Abort: sync.OnceFunc(func() { close(abort) }), done: make(chan int, 1), out: &lockedBuffer{}}
	program := simagent.Program{
		Stdout: a.out, Stderr: a.out, Delay: 10 * time.Millisecond, Abort: abort,
		Getenv: func(name string) string { return all[name] },
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		a.done <- program.Main(ctx, []string{"start", "--acquire-job", job})
	}()
	t.Cleanup(func() { cancel(); a.Abort(); <-finished })
	return a
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

// Received returns what came so far.
func (r *Receiver) Received() []Webhook {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Webhook(nil), r.got...)
}
