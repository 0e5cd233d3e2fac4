// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	gh "github.com/google/go-github/v88/github"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

func newClient(t *testing.T, base, token string) *gh.Client {
	t.Helper()
	base += "/"
	c, err := gh.NewClient(gh.WithAuthToken(token), gh.WithURLs(&base, &base), gh.WithDisableRateLimitCheck())
	requireNoError(t, err)
	return c
}

// response is the response to a plain HTTP call.
type response struct {
	code   int
	header http.Header
	text   string
	body   map[string]any
}

// sendRequest sends one request with a raw Authorization header, and with further headers as names and values.
func sendRequest(t *testing.T, s *githubtest.Server, method, path, auth string, body any, header ...string) response {
	t.Helper()
	var reader io.Reader = http.NoBody
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		requireNoError(t, err)
		reader = bytes.NewReader(text)
	}
	req := httptest.NewRequestWithContext(t.Context(), method, s.URL+path, reader)
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, req)
	a := response{code: w.Code, header: w.Header(), text: w.Body.String()}
	_ = json.Unmarshal(w.Body.Bytes(), &a.body)
	return a
}

const auth = "Bearer " + githubtest.PAT

func newJITBody(name string, labels ...string) map[string]any {
	return map[string]any{"name": name, "runner_group_id": 1, "labels": labels}
}

const (
	repoRunnerAccess = "/repos/octo-org/octo-repo/actions/runners"
	orgRunnerAccess  = "/orgs/octo-org/actions/runners"
)

// createJITConfig registers a JIT runner at the repository and returns its just-in-time config.
func createJITConfig(t *testing.T, s *githubtest.Server, name string, labels ...string) string {
	t.Helper()
	a := sendRequest(t, s, "POST", repoRunnerAccess+"/generate-jitconfig", auth, newJITBody(name, labels...))
	blob, _ := a.body["encoded_jit_config"].(string)
	if a.code != http.StatusCreated || blob == "" {
		t.Fatalf("generate-jitconfig: %d %s", a.code, a.text)
	}
	return blob
}

// createRegistrationToken returns a token for the repository.
func createRegistrationToken(t *testing.T, s *githubtest.Server, verb string) string {
	t.Helper()
	a := sendRequest(t, s, "POST", repoRunnerAccess+"/"+verb, auth, nil)
	token, _ := a.body["token"].(string)
	if a.code != http.StatusCreated || token == "" {
		t.Fatalf("%s: %d %s", verb, a.code, a.text)
	}
	return token
}

func newFakeClock() *testclock.FakeClock {
	return testclock.NewFakeClock(time.Now().Truncate(time.Second))
}

// hasIdleRunners reports whether n runners are online and have no job.
func hasIdleRunners(n int) func(control.State) bool {
	return func(st control.State) bool {
		got := 0
		for _, r := range st.Runners {
			if r.Online && !r.Busy && r.JobID == 0 {
				got++
			}
		}
		return got == n
	}
}

func hasCompletedJobs(n int) func(control.State) bool { return hasJobs("completed", n) }

func hasRunningJobs(n int) func(control.State) bool { return hasJobs("in_progress", n) }

func hasJobs(status string, n int) func(control.State) bool {
	return func(st control.State) bool {
		got := 0
		for _, j := range st.Jobs {
			if j.Status == status {
				got++
			}
		}
		return got == n
	}
}
