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

func client(t *testing.T, base, token string) *gh.Client {
	t.Helper()
	base += "/"
	c, err := gh.NewClient(gh.WithAuthToken(token), gh.WithURLs(&base, &base), gh.WithDisableRateLimitCheck())
	must(t, err)
	return c
}

// answer is the response to a plain HTTP call.
type answer struct {
	code   int
	header http.Header
	text   string
	body   map[string]any
}

// call makes one request with a raw Authorization header, and with further headers as names and values.
func call(t *testing.T, s *githubtest.Server, method, path, auth string, body any, header ...string) answer {
	t.Helper()
	var reader io.Reader = http.NoBody
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		must(t, err)
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
	a := answer{code: w.Code, header: w.Header(), text: w.Body.String()}
	_ = json.Unmarshal(w.Body.Bytes(), &a.body)
	return a
}

const auth = "Bearer " + githubtest.PAT

func jitBody(name string, labels ...string) map[string]any {
	return map[string]any{"name": name, "runner_group_id": 1, "labels": labels}
}

const (
	repoRunnerAccess = "/repos/octo-org/octo-repo/actions/runners"
	orgRunnerAccess  = "/orgs/octo-org/actions/runners"
)

// jit registers a JIT runner at the repository and returns its just-in-time config.
func jit(t *testing.T, s *githubtest.Server, name string, labels ...string) string {
	t.Helper()
	a := call(t, s, "POST", repoRunnerAccess+"/generate-jitconfig", auth, jitBody(name, labels...))
	blob, _ := a.body["encoded_jit_config"].(string)
	if a.code != http.StatusCreated || blob == "" {
		t.Fatalf("generate-jitconfig: %d %s", a.code, a.text)
	}
	return blob
}

// registrationToken returns a token for the repository.
func registrationToken(t *testing.T, s *githubtest.Server, verb string) string {
	t.Helper()
	a := call(t, s, "POST", repoRunnerAccess+"/"+verb, auth, nil)
	token, _ := a.body["token"].(string)
	if a.code != http.StatusCreated || token == "" {
		t.Fatalf("%s: %d %s", verb, a.code, a.text)
	}
	return token
}

func fakeClock() *testclock.FakeClock {
	return testclock.NewFakeClock(time.Now().Truncate(time.Second))
}

// idle reports whether n runners are online and have no job.
func idle(n int) func(control.State) bool {
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

func completed(n int) func(control.State) bool { return jobsAre("completed", n) }

func running(n int) func(control.State) bool { return jobsAre("in_progress", n) }

func jobsAre(status string, n int) func(control.State) bool {
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
