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

// Simulator is implemented by the simulators of all platforms.
type Simulator interface {
	control.Simulator
	Handler() http.Handler
	Control() http.Handler
	TakeViolations() []control.Violation
	Close()
}

// Served is a simulator that a test serves on loopback.
type Served struct {
	ControlURL string

	T testing.TB // the test that serves the simulator

	sim Simulator
}

// Serve serves a simulator until the test ends, and returns the URL of its API without a trailing slash. The
// test fails if a request violated the contract of the platform's API, unless the test has called
// ExpectViolations. name is the name of the platform in the error messages.
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

// ExpectViolations returns and deletes the violations so far. It fails the test unless there are n.
func (s *Served) ExpectViolations(t testing.TB, n int) []control.Violation {
	t.Helper()
	violations := s.sim.TakeViolations()
	if len(violations) != n {
		t.Fatalf("violations: got %d, want %d: %v", len(violations), n, violations)
	}
	return violations
}

// MustQueue queues jobs and fails the test if the simulator rejects them.
func (s *Served) MustQueue(spec control.JobSpec) []control.Job {
	s.T.Helper()
	jobs, err := s.sim.Queue(spec)
	if err != nil {
		s.T.Fatalf("queue jobs: %v", err)
	}
	return jobs
}

// WaitUntil polls the state until cond holds, and returns the state. It fails the test after a
// minute.
func (s *Served) WaitUntil(description string, cond func(control.State) bool) control.State {
	s.T.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		state := s.sim.State()
		if cond(state) {
			return state
		}
		if time.Now().After(deadline) {
			s.T.Fatalf("timed out waiting until %s; state: %+v", description, state)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
