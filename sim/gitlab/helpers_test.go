// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
)

func requireNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// response is the response to a plain HTTP call.
type response struct {
	code   int
	header http.Header
	text   string
	body   map[string]any
	list   []map[string]any
}

// sendRequest sends one request with a token. A body that is not a string is sent as JSON.
func sendRequest(t *testing.T, s *gitlabtest.Server, method, path, token string, body any) response {
	t.Helper()
	return sendWithHeader(t, s, method, path, http.Header{"Private-Token": {token}}, body)
}

func sendWithHeader(t *testing.T, s *gitlabtest.Server, method, path string, header http.Header, body any) response {
	t.Helper()
	text, isText := body.(string)
	if !isText && body != nil {
		raw, err := json.Marshal(body)
		requireNoError(t, err)
		text = string(raw)
	}
	req := httptest.NewRequestWithContext(t.Context(), method, s.URL+"/api/v4"+path, strings.NewReader(text))
	req.Header = header.Clone()
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, req)
	a := response{code: w.Code, header: w.Header(), text: w.Body.String()}
	_ = json.Unmarshal(w.Body.Bytes(), &a.body)
	_ = json.Unmarshal(w.Body.Bytes(), &a.list)
	return a
}

// createRunner creates a runner of the test project and returns its id and token.
func createRunner(t *testing.T, s *gitlabtest.Server, more map[string]any) (id float64, token string) {
	t.Helper()
	body := map[string]any{"runner_type": "project_type", "project_id": 380, "description": "vm-1", "run_untagged": true}
	maps.Copy(body, more)
	a := sendRequest(t, s, "POST", "/user/runners", gitlabtest.Token, body)
	id, _ = a.body["id"].(float64)
	token, _ = a.body["token"].(string)
	if a.code != http.StatusCreated || id == 0 || !strings.HasPrefix(token, "glrt-") {
		t.Fatalf("make a runner: %d %s", a.code, a.text)
	}
	return id, token
}

// requestJob requests a job as a runner.
func requestJob(t *testing.T, s *gitlabtest.Server, token string) response {
	t.Helper()
	return sendWithHeader(t, s, "POST", "/jobs/request", http.Header{}, map[string]any{
		"token": token, "system_id": "s_0", "info": map[string]any{"name": "gitlab-runner"},
	})
}

func newFakeClock() *testclock.FakeClock {
	return testclock.NewFakeClock(time.Now().Truncate(time.Second))
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
