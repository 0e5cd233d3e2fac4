// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
)

func hasDelivered(n int) func(control.State) bool {
	return func(st control.State) bool { return st.Webhooks.Pending == 0 && st.Webhooks.Delivered == n }
}

func listStatuses(t *testing.T, hooks *gitlabtest.Receiver) []string {
	t.Helper()
	var out []string
	for _, hook := range hooks.Webhooks() {
		var event struct {
			Status string `json:"build_status"`
		}
		requireNoError(t, json.Unmarshal(hook.Body, &event))
		out = append(out, event.Status)
	}
	return out
}

func TestWebhooksOfAJob(t *testing.T) {
	t.Parallel()
	hooks := gitlabtest.NewReceiver(t)
	s := gitlabtest.New(t, gitlab.Options{Webhook: control.WebhookTarget{URL: hooks.URL, Secret: "a secret"}})
	_, token := createRunner(t, s, map[string]any{"tag_list": []string{"linux"}})
	s.Queue(control.JobSpec{Labels: []string{"linux"}, Command: "true", Workflow: "nightly", Environment: "prod"})
	requireNoError(t, s.Approve(1977))
	s.StartRunner(t, token).Wait()
	s.WaitUntil("all webhooks are delivered", hasDelivered(5))
	if got := strings.Join(listStatuses(t, hooks), " "); got != "created manual pending running success" {
		t.Errorf("statuses: %s", got)
	}
	for i, hook := range hooks.Webhooks() {
		var event map[string]any
		requireNoError(t, json.Unmarshal(hook.Body, &event))
		_, hasTags := event["tag_list"]
		if project, _ := event["project"].(map[string]any); project["path_with_namespace"] != gitlabtest.Project || event["object_kind"] != "build" || hasTags {
			t.Errorf("event %d: %s", i, hook.Body)
		}
		if hook.Header.Get("X-Gitlab-Event") != "Job Hook" || hook.Header.Get("X-Gitlab-Token") != "a secret" ||
			hook.Header.Get("Webhook-Id") == "" || hook.Header.Get("Webhook-Signature") != "" || hook.Header.Get("X-Gitlab-Instance") != s.URL {
			t.Errorf("headers %d: %v", i, hook.Header)
		}
		if runner := event["runner"]; (runner != nil) != (i > 2) {
			t.Errorf("event %d has runner %v", i, runner)
		}
	}
}

func TestSigningToken(t *testing.T) {
	t.Parallel()
	hooks := gitlabtest.NewReceiver(t)
	key := []byte("0123456789abcdef0123456789abcdef")
	s := gitlabtest.New(t, gitlab.Options{})
	requireNoError(t, control.NewClient(s.ControlURL).SetWebhook(t.Context(), control.WebhookTarget{
		URL: hooks.URL, Secret: "whsec_" + base64.StdEncoding.EncodeToString(key),
	}))
	s.Queue(control.JobSpec{})
	s.WaitUntil("all webhooks are delivered", hasDelivered(2))
	for _, hook := range hooks.Webhooks() {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(hook.Header.Get("Webhook-Id") + "." + hook.Header.Get("Webhook-Timestamp") + "." + string(hook.Body)))
		if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); hook.Header.Get("Webhook-Signature") != want || hook.Header.Get("X-Gitlab-Token") != "" {
			t.Errorf("headers: %v, want %s", hook.Header, want)
		}
	}
}

func TestWebhookFaults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		faults control.Faults
		check  func(control.WebhookCounts, int) bool
	}{
		"lost":       {control.Faults{WebhookLost: 1}, func(c control.WebhookCounts, came int) bool { return c.Lost == 20 && came == 0 }},
		"duplicated": {control.Faults{WebhookDuplicated: 1}, func(c control.WebhookCounts, came int) bool { return c.Duplicated == 20 && came == 40 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hooks := gitlabtest.NewReceiver(t)
			s := gitlabtest.New(t, gitlab.Options{Faults: test.faults, Webhook: control.WebhookTarget{URL: hooks.URL}, Seed: 5})
			s.Queue(control.JobSpec{Count: 10})
			state := s.WaitUntil("all webhooks are delivered", func(st control.State) bool { return st.Webhooks.Pending == 0 })
			if got := hooks.Webhooks(); !test.check(state.Webhooks, len(got)) {
				t.Errorf("%d were delivered: %+v", len(got), state.Webhooks)
			}
		})
	}
}

// GitLab disables a hook for a while after four consecutive failures.
func TestFailingHookIsDisabled(t *testing.T) {
	t.Parallel()
	clk := newFakeClock()
	hooks := gitlabtest.NewReceiver(t)
	hooks.SetStatus(http.StatusInternalServerError)
	s := gitlabtest.New(t, gitlab.Options{Clock: clk, Webhook: control.WebhookTarget{URL: hooks.URL}})
	settled := func(st control.State) bool { return st.Webhooks.Pending == 0 }
	s.Queue(control.JobSpec{Count: 2})
	s.WaitUntil("four failed", settled)
	hooks.SetStatus(http.StatusOK)
	s.Queue(control.JobSpec{})
	if state := s.WaitUntil("two were left out", settled); state.Webhooks.Failed != 6 || len(hooks.Webhooks()) != 4 {
		t.Errorf("%d were delivered: %+v", len(hooks.Webhooks()), state.Webhooks)
	}
	clk.Step(61 * time.Second)
	s.Queue(control.JobSpec{})
	if state := s.WaitUntil("two are delivered", settled); state.Webhooks.Delivered != 2 {
		t.Errorf("after a minute: %+v", state.Webhooks)
	}
}

// FuzzBodies sends arbitrary bodies to every call that reads a body. The simulator must respond with a
// status of GitLab. Only requests may be violations.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"runner_type":"instance_type","tag_list":["x"],"run_untagged":false}`))
	f.Add([]byte(`{"runner_type":"project_type","project_id":1e30}`))
	f.Add([]byte(`{"token":"x","info":{},"last_update":"y"}`))
	f.Add([]byte(`{"token":"x","state":"success","exit_code":-1}`))
	f.Add([]byte(`{"repo":"gitlab-org/ci/gitlab-test","labels":["x"],"count":2}`))
	f.Add([]byte(`{"webhookLost":1e9}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := gitlab.New(gitlab.Options{
			Projects: []gitlab.Project{{Path: gitlabtest.Project}}, Tokens: []gitlab.Token{{Token: "t", Scopes: []string{"api"}, Admin: true}},
		})
		requireNoError(t, err)
		defer s.Close()
		for _, target := range []struct {
			method, path string
			handler      http.Handler
		}{
			{http.MethodPost, "/api/v4/user/runners", s.Handler()},
			{http.MethodPut, "/api/v4/runners/101", s.Handler()},
			{http.MethodPost, "/api/v4/jobs/request", s.Handler()},
			{http.MethodPut, "/api/v4/jobs/1977", s.Handler()},
			{http.MethodPatch, "/api/v4/jobs/1977/trace", s.Handler()},
			{http.MethodPost, "/sim/jobs", s.Control()},
			{http.MethodPost, "/sim/faults", s.Control()}, // last, so that no fault affects the other calls
		} {
			r := httptest.NewRequestWithContext(t.Context(), target.method, target.path, strings.NewReader(string(body)))
			r.Header.Set("Private-Token", "t")
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Content-Range", string(body[:min(len(body), 20)]))
			w := httptest.NewRecorder()
			target.handler.ServeHTTP(w, r)
			if w.Code >= 500 {
				t.Errorf("%s: status %d: %s", target.path, w.Code, w.Body)
			}
		}
		for _, v := range s.TakeViolations() {
			if v.Kind != "request" {
				t.Errorf("violation: %+v", v)
			}
		}
	})
}
