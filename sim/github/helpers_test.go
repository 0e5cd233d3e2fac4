// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	gh "github.com/google/go-github/v88/github"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgesim"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

// asForgesim makes this test program behave as the forgesim program.
const asForgesim = "HYPERFLEET_TEST_AS_FORGESIM"

func TestMain(m *testing.M) {
	if os.Getenv(asForgesim) != "" {
		os.Exit(runForgesim(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func client(t *testing.T, base, token string) *gh.Client {
	t.Helper()
	base += "/"
	c, err := gh.NewClient(gh.WithAuthToken(token), gh.WithURLs(&base, &base), gh.WithDisableRateLimitCheck())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// answer is what a plain HTTP call got.
type answer struct {
	code   int
	header http.Header
	text   string
	body   map[string]any
}

// call makes one request with a raw Authorization header.
func call(t *testing.T, s *githubtest.Server, method, path, auth string, body any) answer {
	t.Helper()
	var reader io.Reader = http.NoBody
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	req := httptest.NewRequestWithContext(t.Context(), method, s.URL+path, reader)
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
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
	repoRunners = "/repos/octo-org/octo-repo/actions/runners"
	orgRunners  = "/orgs/octo-org/actions/runners"
)

// jit registers a JIT runner at the repository and returns its blob.
func jit(t *testing.T, s *githubtest.Server, name string, labels ...string) string {
	t.Helper()
	a := call(t, s, "POST", repoRunners+"/generate-jitconfig", auth, jitBody(name, labels...))
	blob, _ := a.body["encoded_jit_config"].(string)
	if a.code != http.StatusCreated || blob == "" {
		t.Fatalf("generate-jitconfig: %d %s", a.code, a.text)
	}
	return blob
}

// registrationToken returns a token for the repository.
func registrationToken(t *testing.T, s *githubtest.Server, verb string) string {
	t.Helper()
	a := call(t, s, "POST", repoRunners+"/"+verb, auth, nil)
	token, _ := a.body["token"].(string)
	if a.code != http.StatusCreated || token == "" {
		t.Fatalf("%s: %d %s", verb, a.code, a.text)
	}
	return token
}

func fakeClock() *testclock.FakeClock {
	return testclock.NewFakeClock(time.Now().Truncate(time.Second))
}

// idle says whether n runners are online and free.
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

func completed(n int) func(control.State) bool {
	return func(st control.State) bool {
		got := 0
		for _, j := range st.Jobs {
			if j.Status == "completed" {
				got++
			}
		}
		return got == n
	}
}

func running(n int) func(control.State) bool {
	return func(st control.State) bool {
		got := 0
		for _, j := range st.Jobs {
			if j.Status == "in_progress" {
				got++
			}
		}
		return got == n
	}
}

func runForgesim(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return forgesim.Run(ctx, args, os.Stdout, os.Stderr)
}
