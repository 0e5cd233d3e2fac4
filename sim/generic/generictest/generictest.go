// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generictest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/generic"
)

// Defaults that New fills into empty options.
const (
	Source = "demo"
	// Secret of webhooks.
	Secret = "whsec_c2VjcmV0IG9mIHRoZSBzaW11bGF0ZWQgc2VuZGVy"
)

// Server is a sender served on loopback.
type Server struct {
	*generic.Server

	URL        string // of the jobs' commands, without a trailing slash
	ControlURL string

	t testing.TB
}

// New starts a sender that stops with the test. Violations that are left at the end fail
// the test; use ExpectViolations for those a test provokes.
func New(t testing.TB, opts generic.Options) *Server {
	t.Helper()
	if opts.Webhook.Secret == "" {
		opts.Webhook.Secret = Secret
	}
	sim, err := generic.New(opts)
	if err != nil {
		t.Fatalf("start simulated sender: %v", err)
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
			t.Errorf("the sender's contract is violated (%s) %s %s: %s", v.Kind, v.Method, v.Path, v.Message)
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

// Webhook is one delivery as received.
type Webhook struct {
	Header http.Header
	Body   []byte
}

// Receiver takes webhooks.
type Receiver struct {
	URL string

	mu     sync.Mutex
	got    []Webhook
	answer func(n int, hook Webhook) int
}

// NewReceiver listens for webhooks on loopback. answer gives the status code for the
// n-th webhook, counted from 1; nil answers 202 to all.
func NewReceiver(t testing.TB, answer func(n int, hook Webhook) int) *Receiver {
	t.Helper()
	r := &Receiver{answer: answer}
	server := httptest.NewServer(http.HandlerFunc(r.take))
	t.Cleanup(server.Close)
	r.URL = server.URL
	return r
}

func (r *Receiver) take(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	hook := Webhook{Header: req.Header, Body: body}
	r.mu.Lock()
	r.got = append(r.got, hook)
	n := len(r.got)
	r.mu.Unlock()
	code := http.StatusAccepted
	if r.answer != nil {
		code = r.answer(n, hook)
	}
	w.WriteHeader(code)
}

// Received returns what came so far.
func (r *Receiver) Received() []Webhook {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Webhook(nil), r.got...)
}
