// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

// actions is a caller of the Actions service.
type actions struct {
	t     *testing.T
	s     *githubtest.Server
	base  string
	token string
}

func connect(t *testing.T, s *githubtest.Server) *actions {
	t.Helper()
	body := map[string]any{"url": s.URL + "/octo-org/octo-repo", "runner_event": "register"}
	a := call(t, s, "POST", "/actions/runner-registration", "RemoteAuth "+registrationToken(t, s, "registration-token"), body)
	base, _ := a.body["url"].(string)
	token, _ := a.body["token"].(string)
	u, err := url.Parse(base)
	if err != nil || a.code != http.StatusOK || token == "" {
		t.Fatalf("runner-registration: %d %s", a.code, a.text)
	}
	return &actions{t: t, s: s, base: strings.TrimSuffix(u.EscapedPath(), "/") + "/_apis/runtime/", token: token}
}

func (a *actions) ask(method, path string, body any) answer {
	a.t.Helper()
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	return call(a.t, a.s, method, a.base+path+separator+"api-version=6.0-preview", "Bearer "+a.token, body)
}

func want(t *testing.T, a answer, code int, kind string) answer {
	t.Helper()
	typeName, _ := a.body["typeName"].(string)
	if a.code != code || !strings.Contains(typeName, kind) {
		t.Fatalf("got %d %s, want %d %s", a.code, a.text, code, kind)
	}
	return a
}

func setBody(name string) map[string]any {
	return map[string]any{
		"name": name, "runnerGroupId": 1, "labels": []map[string]any{{"type": "System", "name": name}},
		"RunnerSetting": map[string]any{"ephemeral": true, "disableUpdate": true},
	}
}

// queueOf is a session's queue.
type queueOf struct {
	*actions

	path, token, session string
}

func (a *actions) open() queueOf {
	a.t.Helper()
	got := want(a.t, a.ask("POST", "runnerscalesets/1/sessions", map[string]any{"ownerName": "me"}), http.StatusOK, "")
	address, _ := got.body["messageQueueUrl"].(string)
	token, _ := got.body["messageQueueAccessToken"].(string)
	session, _ := got.body["sessionId"].(string)
	u, err := url.Parse(address)
	if err != nil {
		a.t.Fatal(err)
	}
	return queueOf{a, u.RequestURI(), token, session}
}

// message is a message as a listener reads it.
type message struct {
	ID         int64          `json:"messageId"`
	Body       string         `json:"body"`
	Statistics map[string]int `json:"statistics"`
	events     []map[string]any
}

func (q queueOf) poll(last int64, capacity int) (message, int) {
	q.t.Helper()
	path := q.path
	if last > 0 {
		path += fmt.Sprintf("&lastMessageId=%d", last)
	}
	req, err := http.NewRequestWithContext(q.t.Context(), http.MethodGet, q.s.URL+path, http.NoBody)
	if err != nil {
		q.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+q.token)
	req.Header.Set("Accept", "application/json; api-version=6.0-preview")
	req.Header.Set("X-Scalesetmaxcapacity", strconv.Itoa(capacity))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		q.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var got message
	if resp.StatusCode == http.StatusOK {
		if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
			q.t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(got.Body), &got.events); err != nil {
			q.t.Fatal(err)
		}
	}
	return got, resp.StatusCode
}

func (q queueOf) acknowledge(id int64) int {
	q.t.Helper()
	return call(q.t, q.s, "DELETE", fmt.Sprintf("/actions-broker/scalesets/message/%d?sessionId=%s", id, q.session), "Bearer "+q.token, nil).code
}

func scaleSetServer(t *testing.T, options github.Options) (*githubtest.Server, *actions) {
	t.Helper()
	if options.PollTimeout == 0 {
		options.PollTimeout = 20 * time.Millisecond
	}
	s := githubtest.New(t, options)
	a := connect(t, s)
	want(t, a.ask("POST", "runnerscalesets", setBody("big")), http.StatusOK, "")
	return s, a
}

func TestScaleSetCalls(t *testing.T) {
	t.Parallel()
	_, a := scaleSetServer(t, github.Options{})
	if got := a.ask("GET", "runnerscalesets?runnerGroupId=1&name=big", nil); got.body["count"] != float64(1) {
		t.Errorf("list: %s", got.text)
	}
	if got := a.ask("GET", "runnerscalesets?runnerGroupId=1&name=small", nil); got.body["count"] != float64(0) {
		t.Errorf("list of another name: %s", got.text)
	}
	if got := a.ask("GET", "runnergroups/?groupName=Default", nil); got.body["count"] != float64(1) {
		t.Errorf("groups: %s", got.text)
	}
	want(t, a.ask("POST", "runnerscalesets", setBody("BIG")), http.StatusBadRequest, "RunnerScaleSetExistsException")
	want(t, a.ask("GET", "runnerscalesets/9", nil), http.StatusNotFound, "RunnerScaleSetNotFoundException")
	want(t, a.ask("PATCH", "runnerscalesets/1", setBody("bigger")), http.StatusOK, "")
	jit := map[string]any{"name": "vm", "workFolder": "_work"}
	want(t, a.ask("POST", "runnerscalesets/1/generatejitconfig", jit), http.StatusOK, "")
	want(t, a.ask("POST", "runnerscalesets/1/generatejitconfig", jit), http.StatusConflict, "AgentExistsException")
	session := a.open()
	want(t, a.ask("POST", "runnerscalesets/1/sessions", map[string]any{"ownerName": "you"}),
		http.StatusConflict, "RunnerScaleSetSessionConflictException")
	want(t, a.ask("PATCH", "runnerscalesets/1/sessions/other", nil), http.StatusNotFound, "RunnerAdminException")
	want(t, a.ask("DELETE", "runnerscalesets/1/sessions/"+session.session, nil), http.StatusNoContent, "")
	want(t, a.ask("DELETE", "runnerscalesets/1/sessions/"+session.session, nil), http.StatusBadRequest, "RunnerScaleSetSessionExpiredException")
	want(t, a.ask("DELETE", "runnerscalesets/1", nil), http.StatusNoContent, "")
	a.token = "wrong"
	want(t, a.ask("GET", "runnerscalesets/1", nil), http.StatusUnauthorized, "VssUnauthorizedException")
}

// What the real service ignores or refuses is a violation.
func TestScaleSetIsStrict(t *testing.T) {
	t.Parallel()
	s, a := scaleSetServer(t, github.Options{})
	for name, do := range map[string]func(){
		"unknown path":       func() { a.ask("GET", "runnerpools", nil) },
		"unknown queue path": func() { call(t, s, "POST", "/actions-broker/scalesets/message", "", nil) },
		"no api-version":     func() { call(t, s, "GET", a.base+"runnerscalesets/1", "Bearer "+a.token, nil) },
		"unknown field": func() {
			body := setBody("x")
			body["lables"] = nil
			want(t, a.ask("POST", "runnerscalesets", body), http.StatusOK, "") // it is passed over, too
		},
		"no label":          func() { a.ask("POST", "runnerscalesets", map[string]any{"name": "x", "runnerGroupId": 1}) },
		"half a look-up":    func() { a.ask("GET", "runnerscalesets?name=big", nil) },
		"session of nobody": func() { a.ask("POST", "runnerscalesets/1/sessions", map[string]any{}) },
		"label of no type": func() {
			a.ask("PATCH", "runnerscalesets/1", map[string]any{"name": "big", "runnerGroupId": 1, "labels": []any{map[string]any{"name": "big"}}})
		},
		"registration, no verb": func() {
			call(t, s, "POST", "/actions/runner-registration", "RemoteAuth x", map[string]any{"url": s.URL + "/octo-org/octo-repo"})
		},
	} {
		do()
		if got := s.TakeViolations(); len(got) != 1 {
			t.Errorf("%s: %d violations, want 1: %v", name, len(got), got)
		}
	}
	q := a.open()
	call(t, s, "GET", q.path, "Bearer "+q.token, nil)
	s.ExpectViolations(t, 2) // neither capacity nor a version is asked with
}

// A message comes until it is acknowledged, holds at most 50 events, and outlives its session.
func TestScaleSetMessages(t *testing.T) {
	t.Parallel()
	s, a := scaleSetServer(t, github.Options{})
	q := a.open()
	s.Queue(control.JobSpec{Labels: []string{"big"}, Count: 70})
	if _, code := q.poll(0, 0); code != http.StatusAccepted {
		t.Fatalf("with no capacity: %d, want 202", code)
	}
	first, _ := q.poll(0, 60)
	if len(first.events) != 50 || first.Statistics["totalAssignedJobs"] != 60 {
		t.Fatalf("the first message has %d events, statistics %v", len(first.events), first.Statistics)
	}
	if again, _ := q.poll(0, 60); again.ID != first.ID || again.Body != first.Body {
		t.Errorf("the message is not the same again: %d, %d", first.ID, again.ID)
	}
	second, _ := q.poll(first.ID, 60)
	if len(second.events) != 10 || second.ID <= first.ID {
		t.Errorf("the second message has %d events, id %d", len(second.events), second.ID)
	}
	if code := q.acknowledge(first.ID); code != http.StatusNoContent {
		t.Fatalf("acknowledge: %d", code)
	}
	a.ask("DELETE", "runnerscalesets/1/sessions/"+q.session, nil)
	if _, code := q.poll(0, 60); code != http.StatusUnauthorized {
		t.Errorf("poll after the session's end: %d", code)
	}
	if next, _ := a.open().poll(0, 60); next.ID != second.ID {
		t.Errorf("the next session begins with message %d, want %d", next.ID, second.ID)
	}
	event := first.events[0]
	for key, value := range map[string]any{
		"messageType": "JobAssigned", "runnerRequestId": float64(0), "ownerName": "octo-org", "repositoryName": "octo-repo",
		"jobDisplayName": "build (1)",
	} {
		if event[key] != value {
			t.Errorf("%s is %v, want %v", key, event[key], value)
		}
	}
}

// A job that no runner takes is assigned three times, and is cancelled then.
func TestScaleSetAssignsThreeTimes(t *testing.T) {
	t.Parallel()
	clk := fakeClock()
	s, a := scaleSetServer(t, github.Options{Clock: clk, PollTimeout: time.Minute, ScaleSets: github.ScaleSetOptions{SessionLife: 24 * time.Hour, AdminTokenLife: 24 * time.Hour}})
	q := a.open()
	jobs := s.Queue(control.JobSpec{Labels: []string{"big"}})
	kinds := []string{}
	var last int64
	for try := 1; try <= 3; try++ {
		got, _ := q.poll(last, 1)
		for _, event := range got.events {
			kinds = append(kinds, fmt.Sprint(event["messageType"], " ", event["result"]))
		}
		last = got.ID
		clk.Step(5*time.Minute + time.Second)
		s.State()
		clk.Step(time.Minute)
		s.State()
	}
	got, _ := q.poll(last, 1)
	for _, event := range got.events {
		kinds = append(kinds, fmt.Sprint(event["messageType"], " ", event["result"]))
	}
	wanted := strings.TrimSuffix(strings.Repeat("JobAssigned <nil>,JobCompleted canceled,", 3), ",")
	if text := strings.Join(kinds, ","); text != wanted {
		t.Errorf("events: %s, want %s", text, wanted)
	}
	for _, job := range s.State().Jobs {
		if job.ID == jobs[0].ID && (job.Status != "completed" || job.Conclusion != "cancelled") {
			t.Errorf("the job is %s %s", job.Status, job.Conclusion)
		}
	}
}

// Jobs of a set go to its runners only, and its runners take no others.
func TestScaleSetRunners(t *testing.T) {
	t.Parallel()
	s, a := scaleSetServer(t, github.Options{})
	q := a.open()
	s.Queue(control.JobSpec{Labels: []string{"big"}})
	if got, _ := q.poll(0, 1); len(got.events) != 1 {
		t.Fatalf("%d events, want the assignment", len(got.events))
	}
	githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", jit(t, s, "stranger", "big"))
	s.Eventually("a runner of no set is idle", idle(1))
	made := want(t, a.ask("POST", "runnerscalesets/1/generatejitconfig", map[string]any{"name": "own", "workFolder": "_work"}), http.StatusOK, "")
	blob, _ := made.body["encodedJITConfig"].(string)
	own := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", blob)
	if code := own.Wait(); code != 0 {
		t.Fatalf("the set's runner ended with %d: %s", code, own.Output())
	}
	state := s.Eventually("the job ran", completed(1))
	if got := state.Jobs[0].RunnerName; got != "own" {
		t.Errorf("the job ran on %s", got)
	}
}
