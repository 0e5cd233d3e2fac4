// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
)

// A request that the real service ignores or rejects is a violation.
func TestScaleSetIsStrict(t *testing.T) {
	t.Parallel()
	s, _, _ := newOfficialScaleSet(t, github.Options{})
	register := map[string]any{"url": s.URL + "/octo-org/octo-repo", "runner_event": "register"}
	connected := sendRequest(t, s, "POST", "/actions/runner-registration", "RemoteAuth "+createRegistrationToken(t, s, "registration-token"), register)
	address, _ := connected.body["url"].(string)
	token, _ := connected.body["token"].(string)
	u, err := url.Parse(address)
	requireNoError(t, err)
	base := strings.TrimSuffix(u.EscapedPath(), "/") + "/_apis/runtime/"
	request := func(method, path string, body any) response {
		return sendRequest(t, s, method, base+path, "Bearer "+token, body)
	}
	const version = "?api-version=6.0-preview"
	for name, do := range map[string]func(){
		"unknown path":       func() { request("GET", "runnerpools"+version, nil) },
		"unknown queue path": func() { sendRequest(t, s, "POST", "/actions-broker/scalesets/message", "", nil) },
		"no api-version":     func() { request("GET", "runnerscalesets/1", nil) },
		"unknown field": func() {
			body := map[string]any{
				"name": "x", "runnerGroupId": 1, "labels": []map[string]any{{"type": "System", "name": "x"}}, "lables": nil,
				"RunnerSetting": map[string]any{"ephemeral": true, "disableUpdate": true},
			}
			if got := request("POST", "runnerscalesets"+version, body); got.code != http.StatusOK { // the service ignores the field
				t.Errorf("an unknown field: %d %s", got.code, got.text)
			}
		},
		"no label":          func() { request("POST", "runnerscalesets"+version, map[string]any{"name": "x", "runnerGroupId": 1}) },
		"no group in name":  func() { request("GET", "runnerscalesets"+version+"&name=big", nil) },
		"session, no owner": func() { request("POST", "runnerscalesets/1/sessions"+version, map[string]any{}) },
		"label of no type": func() {
			body := map[string]any{"name": "big", "runnerGroupId": 1, "labels": []any{map[string]any{"name": "big"}}}
			request("PATCH", "runnerscalesets/1"+version, body)
		},
		"registration, no verb": func() {
			sendRequest(t, s, "POST", "/actions/runner-registration", "RemoteAuth x", map[string]any{"url": s.URL + "/octo-org/octo-repo"})
		},
	} {
		do()
		if got := s.TakeViolations(); len(got) != 1 {
			t.Errorf("%s: %d violations, want 1: %v", name, len(got), got)
		}
	}
	session := request("POST", "runnerscalesets/1/sessions"+version, map[string]any{"ownerName": "me"})
	queue, _ := session.body["messageQueueUrl"].(string)
	queueToken, _ := session.body["messageQueueAccessToken"].(string)
	u, err = url.Parse(queue)
	requireNoError(t, err)
	sendRequest(t, s, "GET", u.RequestURI(), "Bearer "+queueToken, nil)
	s.ExpectViolations(t, 2) // the poll has neither a capacity nor a version
}

// A message is sent until it is acknowledged, contains at most 50 events, and remains after its session has ended.
func TestScaleSetMessages(t *testing.T) {
	t.Parallel()
	s, c, set := newOfficialScaleSet(t, github.Options{})
	m := newListener(t, c, set)
	s.Queue(control.JobSpec{Labels: []string{"big"}, Count: 70})
	if got, err := m.GetMessage(t.Context(), 0, 0); err != nil || got != nil {
		t.Fatalf("with no capacity: %+v, %v", got, err)
	}
	first := getNextMessage(t, m, 0, 60)
	if len(first.JobAssignedMessages) != 50 || first.Statistics.TotalAssignedJobs != 60 {
		t.Fatalf("the first message has %d events, statistics %+v", len(first.JobAssignedMessages), first.Statistics)
	}
	if again := getNextMessage(t, m, 0, 60); again.MessageID != first.MessageID || len(again.JobAssignedMessages) != 50 {
		t.Errorf("the message is not the same again: %d, %d", first.MessageID, again.MessageID)
	}
	second := getNextMessage(t, m, first.MessageID, 60)
	if len(second.JobAssignedMessages) != 10 || second.MessageID <= first.MessageID {
		t.Errorf("the second message has %d events, id %d", len(second.JobAssignedMessages), second.MessageID)
	}
	requireNoError(t, m.DeleteMessage(t.Context(), first.MessageID))
	requireNoError(t, m.Close(t.Context()))
	if got, err := m.GetMessage(t.Context(), 0, 60); err == nil {
		t.Errorf("poll after the session's end: %+v", got)
	}
	if next := getNextMessage(t, newListener(t, c, set), 0, 60); next.MessageID != second.MessageID {
		t.Errorf("the next session begins with message %d, want %d", next.MessageID, second.MessageID)
	}
}

// A job that no runner starts is assigned three times, and is then cancelled.
func TestScaleSetAssignsThreeTimes(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	clk := newFakeClock()
	s, c, set := newOfficialScaleSet(t, github.Options{Clock: clk, ScaleSets: github.ScaleSetOptions{SessionTimeout: day, AdminTokenLifetime: day, QueueTokenLifetime: day}})
	m := newListener(t, c, set)
	job := s.Queue(control.JobSpec{Labels: []string{"big"}})[0]
	last := 0
	for try := 1; try <= 4; try++ {
		got := getNextMessage(t, m, last, 1)
		assigned, completed := 1, 1 // the assignment has ended, and the job is assigned again
		switch try {
		case 1:
			completed = 0
		case 4:
			assigned = 0
		}
		if len(got.JobAssignedMessages) != assigned || len(got.JobCompletedMessages) != completed {
			t.Errorf("message %d: %+v", try, got)
		}
		for _, e := range got.JobCompletedMessages {
			if e.Result != "canceled" {
				t.Errorf("message %d: it ended with %s", try, e.Result)
			}
		}
		last = got.MessageID
		clk.Step(5*time.Minute + time.Second)
		s.State()
		clk.Step(time.Minute)
		s.State()
	}
	if got := s.State().Jobs[0]; got.ID != job.ID || got.Status != "completed" || got.Conclusion != "cancelled" {
		t.Errorf("the job: %+v", got)
	}
}
