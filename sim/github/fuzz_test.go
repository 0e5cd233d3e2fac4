// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

// FuzzBodies sends arbitrary bodies to every call that reads a body. The simulator must respond
// with a status of GitHub, and its responses must not violate the contract. Only requests may be
// violations.
func FuzzBodies(f *testing.F) {
	spec, err := github.LoadSpec()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"name":"n","runner_group_id":1,"labels":["x"]}`))
	f.Add([]byte(`{"name":"n","runner_group_id":1e30,"labels":["x"]}`))
	f.Add([]byte(`{"url":"http://x/o","name":"n"}`))
	f.Add([]byte(`{"assertion":"a.b.c"}`))
	f.Add([]byte(`{"repo":"octo-org/octo-repo","labels":["x"],"count":2}`))
	f.Add([]byte(`{"webhookLost":1e9}`))
	f.Add([]byte(`[`))
	newSim := func(t *testing.T) *github.Server {
		t.Helper()
		sim, err := github.New(github.Options{
			Spec: spec, Repos: []github.Repo{{FullName: githubtest.Repo}}, PATs: []github.PAT{{Token: "t", Scopes: []string{"repo"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return sim
	}
	var sim *github.Server
	execs := 0
	f.Cleanup(func() {
		if sim != nil {
			sim.Close()
		}
	})
	f.Fuzz(func(t *testing.T, body []byte) {
		execs++
		if sim == nil || execs%200 == 0 { // a server is slow to create, and its state grows
			if sim != nil {
				sim.Close()
			}
			sim = newSim(t)
		}
		targets := []struct {
			path    string
			handler http.Handler
		}{
			{repoRunnerAccess + "/generate-jitconfig", sim.Handler()},
			{protocol.PathRegister, sim.Handler()},
			{protocol.PathRemove, sim.Handler()},
			{protocol.PathToken, sim.Handler()},
			{"/sim/jobs", sim.Control()},
			{"/sim/faults", sim.Control()}, // last, so that no fault affects the other calls
		}
		for _, target := range targets {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, target.path, strings.NewReader(string(body)))
			r.Header.Set("Authorization", "Bearer t")
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			target.handler.ServeHTTP(w, r)
			if w.Code >= 500 {
				t.Errorf("%s: status %d: %s", target.path, w.Code, w.Body)
			}
		}
		if err := sim.SetFaults(control.Faults{}); err != nil {
			t.Error(err)
		}
		for _, v := range sim.TakeViolations() {
			if v.Kind != "request" {
				t.Errorf("violation: %+v", v)
			}
		}
	})
}
