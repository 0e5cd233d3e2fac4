// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

const unknownID = "00000000-0000-4000-8000-000000000000"

// A request that violates the contract is recorded as a violation. It is rejected unless Buildkite
// ignores the violation.
func TestViolationsAreRecorded(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		method, path, body string
		code               int
	}{
		"unknown call":           {"GET", "/stacks", "", http.StatusNotImplemented},
		"unknown method":         {"DELETE", "/stacks/test", "", http.StatusNotImplemented},
		"unknown field":          {"POST", "/stacks/test/jobs/get-states", `{"job_uuids":["x"],"more":1}`, http.StatusOK},
		"wrong type":             {"POST", "/stacks/test/jobs/get-states", `{"job_uuids":"x"}`, http.StatusBadRequest},
		"no ids":                 {"POST", "/stacks/test/jobs/get-states", `{"job_uuids":[]}`, http.StatusBadRequest},
		"no body":                {"POST", "/stacks/test/jobs/get-states", ``, http.StatusBadRequest},
		"reserved for too long":  {"PUT", "/stacks/test/scheduled-jobs/batch-reserve", `{"job_uuids":["x"],"reservation_expiry_seconds":3601}`, http.StatusBadRequest},
		"reserved for 0 s":       {"PUT", "/stacks/test/scheduled-jobs/batch-reserve", `{"job_uuids":["x"],"reservation_expiry_seconds":0}`, http.StatusBadRequest},
		"token for too long":     {"POST", "/stacks/test/job-acquisition-tokens", `{"job_uuids":["x"],"token_lifetime_seconds":3601}`, http.StatusBadRequest},
		"no queue":               {"GET", "/stacks/test/scheduled-jobs", "", http.StatusBadRequest},
		"page too large":         {"GET", "/stacks/test/scheduled-jobs?queue_key=default&limit=1001", "", http.StatusBadRequest},
		"invalid cursor":         {"GET", "/stacks/test/scheduled-jobs?queue_key=default&after=x", "", http.StatusBadRequest},
		"unknown parameter":      {"GET", "/stacks/test/scheduled-jobs?queue_key=default&page=2", "", http.StatusBadRequest},
		"stack without metadata": {"POST", "/stacks/register", `{"key":"k","type":"custom","queue_key":"default"}`, http.StatusUnprocessableEntity},
		"stack of reserved kind": {"POST", "/stacks/register", newRegistration("k", "kubernetes", "default"), http.StatusUnprocessableEntity},
		"stack with invalid key": {"POST", "/stacks/register", newRegistration("a.b", "custom", "default"), http.StatusUnprocessableEntity},
		"stack with a long key":  {"POST", "/stacks/register", newRegistration(strings.Repeat("k", 81), "custom", "default"), http.StatusUnprocessableEntity},
		"finish without detail":  {"POST", "/stacks/test/jobs/" + unknownID + "/finish", `{"exit_status":-1}`, http.StatusUnprocessableEntity},
		"no notifications":       {"POST", "/stacks/test/notifications", `{"notifications":[]}`, http.StatusBadRequest},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := buildkitetest.New(t, buildkite.Options{})
			registerStack(t, server)
			if got := sendRequest(t, server, buildkitetest.Token, tc.method, tc.path, tc.body); got.code != tc.code {
				t.Errorf("status %d %s, want %d", got.code, got.text, tc.code)
			}
			server.ExpectViolations(t, 1)
		})
	}
}

// A request that fails although it does not violate the contract is rejected and is not a violation.
func TestRefusals(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{StackLimit: 1})
	registerStack(t, server)
	cases := map[string]struct {
		token, method, path, body string
		code                      int
	}{
		"no token":         {"", "GET", "/metrics", "", http.StatusUnauthorized},
		"other token":      {"bkct_other", "GET", "/metrics", "", http.StatusUnauthorized},
		"unknown stack":    {buildkitetest.Token, "GET", "/stacks/other/scheduled-jobs?queue_key=default", "", http.StatusNotFound},
		"unknown queue":    {buildkitetest.Token, "GET", "/stacks/test/scheduled-jobs?queue_key=gpu", "", http.StatusNotFound},
		"stack for it":     {buildkitetest.Token, "POST", "/stacks/register", newRegistration("other", "custom", "gpu"), http.StatusNotFound},
		"a stack too many": {buildkitetest.Token, "POST", "/stacks/register", newRegistration("other", "custom", "default"), http.StatusForbidden},
		"known stack":      {buildkitetest.Token, "POST", "/stacks/register", newRegistration("test", "custom", "default"), http.StatusOK},
		"unknown job":      {buildkitetest.Token, "GET", "/stacks/test/jobs/" + unknownID, "", http.StatusNotFound},
		"agent's call":     {buildkitetest.Token, "POST", "/connect", "", http.StatusUnauthorized},
	}
	for name, tc := range cases {
		if got := sendRequest(t, server, tc.token, tc.method, tc.path, tc.body); got.code != tc.code {
			t.Errorf("%s: status %d %s, want %d", name, got.code, got.text, tc.code)
		}
	}
}

func TestReservations(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	server := buildkitetest.New(t, buildkite.Options{Clock: clk, NoLimits: true})
	call := registerStack(t, server)
	jobs := server.Queue(control.JobSpec{Count: 2})
	both := `{"job_uuids":["` + jobs[0].Key + `","` + jobs[1].Key + `","` + unknownID + `"],"reservation_expiry_seconds":60}`
	got := call("PUT", "/scheduled-jobs/batch-reserve", both)
	if got.text != `{"not_reserved":["`+unknownID+`"],"reserved":["`+jobs[0].Key+`","`+jobs[1].Key+`"]}` {
		t.Errorf("reserve: %s", got.text)
	}
	if got := sendRequest(t, server, buildkitetest.Token, "POST", "/stacks/register", newRegistration("other", "custom", "default")); got.code != http.StatusCreated {
		t.Fatal(got.text)
	}
	if got := sendRequest(t, server, buildkitetest.Token, "PUT", "/stacks/other/scheduled-jobs/batch-reserve", both); !strings.Contains(got.text, `"reserved":[]`) {
		t.Errorf("another stack reserved the same jobs: %s", got.text)
	}
	if got := sendRequest(t, server, buildkitetest.Token, "POST", "/stacks/other/job-acquisition-tokens", `{"job_uuids":["`+jobs[0].Key+`"]}`); !strings.Contains(got.text, `"job_acquisition_tokens":[]`) {
		t.Errorf("another stack got a token: %s", got.text)
	}
	clk.Step(50 * time.Second)
	call("PUT", "/scheduled-jobs/batch-reserve", `{"job_uuids":["`+jobs[0].Key+`"],"reservation_expiry_seconds":60}`)
	clk.Step(20 * time.Second)
	first, _ := server.JobLog(jobs[0].Key)
	second, _ := server.JobLog(jobs[1].Key)
	if first != "reserved" || second != "scheduled" {
		t.Errorf("the extended reservation is %s and the other %s", first, second)
	}
	if lapses := server.State().Jobs[1].Requeues; lapses != 1 {
		t.Errorf("%d expired reservations are counted, want 1", lapses)
	}
}

func TestListingPages(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{Queues: []string{"default", "mac"}, NoLimits: true})
	call := registerStack(t, server)
	jobs := server.Queue(control.JobSpec{Count: 5, Labels: []string{"os=linux"}})
	server.Queue(control.JobSpec{Labels: []string{"queue=mac"}})
	var seen []string
	after := ""
	for range 3 {
		got := call("GET", "/scheduled-jobs?queue_key=default&limit=2"+after, "")
		list, _ := got.body["jobs"].([]any)
		for _, item := range list {
			listed, _ := item.(map[string]any)
			id, _ := listed["id"].(string)
			seen = append(seen, id)
		}
		info, _ := got.body["page_info"].(map[string]any)
		cursor, _ := info["end_cursor"].(string)
		after = "&after=" + cursor
		if more, _ := info["has_next_page"].(bool); more != (len(seen) < 5) {
			t.Errorf("after %d jobs has_next_page is %v", len(seen), more)
		}
	}
	for i, id := range seen {
		if id != jobs[i].Key {
			t.Errorf("job %d is %s, want %s", i, id, jobs[i].Key)
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d jobs are listed", len(seen))
	}
}

func TestRateLimits(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	server := buildkitetest.New(t, buildkite.Options{Clock: clk})
	call := registerStack(t, server)
	for i := range 10 {
		if got := call("GET", "/scheduled-jobs?queue_key=default", ""); got.code != http.StatusOK {
			t.Fatalf("call %d: %d", i, got.code)
		}
	}
	got := call("GET", "/scheduled-jobs?queue_key=default", "")
	if got.code != http.StatusTooManyRequests || got.header.Get("Ratelimit-Remaining") != "0" || got.header.Get("Ratelimit-Limit") != "10" {
		t.Errorf("the 11th call: %d %v", got.code, got.header)
	}
	if got := call("POST", "/jobs/get-states", `{"job_uuids":["`+unknownID+`"]}`); got.code != http.StatusOK {
		t.Errorf("another endpoint shares the limit: %d", got.code)
	}
	clk.Step(time.Second)
	if got := call("GET", "/scheduled-jobs?queue_key=default", ""); got.code != http.StatusOK {
		t.Errorf("a second later: %d", got.code)
	}
}

func TestNotificationsAndFinish(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	call := registerStack(t, server)
	job := server.Queue(control.JobSpec{})[0]
	got := call("POST", "/notifications", `{"notifications":[{"job_uuid":"`+job.Key+`","detail":"soon"},{"job_uuid":"`+job.Key+`","detail":""}]}`)
	if got.text != `{"errors":[{"error":"detail is required","indexes":[1]}]}` {
		t.Errorf("notifications: %s", got.text)
	}
	if got := call("POST", "/jobs/"+job.Key+"/finish", `{"exit_status":-1,"detail":"no room"}`); got.code != http.StatusOK {
		t.Errorf("finish: %d %s", got.code, got.text)
	}
	if got := call("POST", "/jobs/"+job.Key+"/finish", `{"exit_status":-1,"detail":"no room"}`); got.code != http.StatusUnprocessableEntity {
		t.Errorf("finish again: %d %s", got.code, got.text)
	}
	if got := server.State().Jobs[0]; got.Conclusion != "failure" {
		t.Errorf("job: %+v", got)
	}
	if got := call("POST", "/deregister", ""); got.code != http.StatusNoContent {
		t.Errorf("deregister: %d", got.code)
	}
}

func TestMetricsCount(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	server.Queue(control.JobSpec{Count: 2})
	server.Queue(control.JobSpec{Environment: "production"})
	got := sendRequest(t, server, buildkitetest.Token, "GET", "/metrics", "")
	want := `"jobs":{"queues":{"default":{"scheduled":2,"running":0,"waiting":1,"total":3}},"running":0,"scheduled":2,"total":3,"waiting":1},"organization":{"slug":"acme"}`
	if !strings.Contains(got.text, want) {
		t.Errorf("metrics: %s", got.text)
	}
}
