// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/gitea"
	"github.com/hyperfleet/hyperfleet/sim/gitea/giteatest"
)

// sendRequest sends a request as a user, and returns the status and the response.
func sendRequest(t *testing.T, s *giteatest.Server, method, path, body string) (int, string) {
	t.Helper()

	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}

	req.Header.Set("Authorization", "token "+giteatest.Token)

	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = resp.Body.Close() }()

	var text json.RawMessage
	_ = json.NewDecoder(resp.Body).Decode(&text)

	return resp.StatusCode, string(text)
}

// TestUnsupportedCallsAreViolations tests that unknown paths, paths of the other server, and invalid
// requests are violations.
func TestUnsupportedCallsAreViolations(t *testing.T) {
	const runners = "/api/v1/repos/acme/shop/actions/runners"

	for name, tc := range map[string]struct {
		forgejo            bool
		method, path, body string
		status             int
	}{
		"no such call":              {false, http.MethodGet, "/api/v1/nothing", "", http.StatusNotImplemented},
		"Forgejo's path":            {false, http.MethodPost, runners, `{"name":"a"}`, http.StatusNotImplemented},
		"Gitea's path":              {true, http.MethodPost, runners + "/registration-token", "", http.StatusNotImplemented},
		"a parameter":               {true, http.MethodGet, runners + "?per_page=3", "", http.StatusOK},
		"a field":                   {true, http.MethodPost, runners, `{"name":"a","ephemeral":true,"labels":[]}`, http.StatusCreated},
		"a runner for several jobs": {true, http.MethodPost, runners, `{"name":"a"}`, http.StatusCreated},
		"an invalid body":           {true, http.MethodPost, runners, `{`, http.StatusUnprocessableEntity},
	} {
		t.Run(name, func(t *testing.T) {
			s := giteatest.New(t, gitea.Options{Forgejo: tc.forgejo})

			if status, text := sendRequest(t, s, tc.method, tc.path, tc.body); status != tc.status {
				t.Errorf("status %d %s, want %d", status, text, tc.status)
			}

			s.ExpectViolations(t, 1)
		})
	}
}

// TestJobOfLostRunnerFails tests that the job of a runner without calls fails after LostTimeout.
func TestJobOfLostRunnerFails(t *testing.T) {
	clk := testclock.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	s := giteatest.New(t, gitea.Options{Forgejo: true, Clock: clk})
	job := s.Queue(control.JobSpec{Labels: []string{"linux"}, Command: "sleep 60"})[0]

	_, text := sendRequest(t, s, http.MethodPost, "/api/v1/repos/acme/shop/actions/runners", `{"name":"vm-1","ephemeral":true}`)

	var made struct {
		UUID  string `json:"uuid"`
		Token string `json:"token"`
	}
	if err := json.Unmarshal([]byte(text), &made); err != nil {
		t.Fatal(err)
	}

	program := s.StartRunner(t, made.UUID, made.Token, job.Key, "linux")
	s.WaitUntil("the job runs", func(st control.State) bool { return st.Jobs[0].Status == "in_progress" })
	clk.Step(10 * time.Minute)

	st := s.WaitUntil("the job is over", func(st control.State) bool { return st.Jobs[0].Status == "completed" })
	if st.Jobs[0].Conclusion != "failure" && st.Jobs[0].Conclusion != "cancelled" || len(st.Runners) != 0 {
		t.Errorf("ended with %+v, runners %+v", st.Jobs[0], st.Runners)
	}

	program.Wait()
}
