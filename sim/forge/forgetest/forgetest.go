// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgetest

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Simulator is what the simulators of all platforms have.
type Simulator interface {
	control.Simulator
	Handler() http.Handler
	Control() http.Handler
	TakeViolations() []control.Violation
	Close()
}

// Served is a simulator served on loopback.
type Served struct {
	ControlURL string

	T testing.TB // the test that it is served for

	sim Simulator
}

// Serve serves a simulator until the test ends, and gives the URL of its API, without a
// slash at its end. Violations that are left then fail the test; name is the platform's.
func Serve(t testing.TB, name string, sim Simulator) (Served, string) {
	t.Helper()
	api, ctl := httptest.NewServer(sim.Handler()), httptest.NewServer(sim.Control())
	t.Cleanup(func() {
		sim.Close() // first, so that held polls end
		api.Close()
		ctl.Close()
		for _, v := range sim.Violations() {
			t.Errorf("%s contract violated (%s) %s %s: %s", name, v.Kind, v.Method, v.Path, v.Message)
		}
	})
	return Served{ControlURL: ctl.URL, T: t, sim: sim}, api.URL
}

// ExpectViolations takes the violations so far and fails unless there are n.
func (s *Served) ExpectViolations(t testing.TB, n int) []control.Violation {
	t.Helper()
	got := s.sim.TakeViolations()
	if len(got) != n {
		t.Fatalf("violations: got %d, want %d: %v", len(got), n, got)
	}
	return got
}

// MustQueue adds jobs and fails the test when they are refused.
func (s *Served) MustQueue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	jobs, err := s.sim.Queue(spec)
	if err != nil {
		s.T.Fatalf("queue jobs: %v", err)
	}
	return jobs
}

// Eventually polls until cond holds; it fails the test after a minute.
func (s *Served) Eventually(what string, cond func(control.State) bool) control.State {
	s.T.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		state := s.sim.State()
		if cond(state) {
			return state
		}
		if time.Now().After(deadline) {
			s.T.Fatalf("timed out waiting until %s; state: %+v", what, state)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
