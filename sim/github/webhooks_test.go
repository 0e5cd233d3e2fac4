// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

const hookSecret = "It's a Secret to Everybody"

func newServerWithWebhooks(t *testing.T, opts github.Options) (*githubtest.Server, *githubtest.Receiver) {
	t.Helper()
	hooks := githubtest.NewReceiver(t)
	opts.Webhook = control.WebhookTarget{URL: hooks.URL, Secret: hookSecret}
	return githubtest.New(t, opts), hooks
}

// parseEvent validates the signature with go-github and parses the payload.
func parseEvent(t *testing.T, w githubtest.Webhook) *gh.WorkflowJobEvent {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", bytes.NewReader(w.Body))
	requireNoError(t, err)
	req.Header = w.Header
	body, err := gh.ValidatePayload(req, []byte(hookSecret))
	requireNoError(t, err)
	parsed, err := gh.ParseWebHook(gh.WebHookType(req), body)
	requireNoError(t, err)
	got, ok := parsed.(*gh.WorkflowJobEvent)
	if !ok {
		t.Fatalf("event is a %T", parsed)
	}
	return got
}

func hasDelivered(n int) func(control.State) bool {
	return func(st control.State) bool { return st.Webhooks.Delivered >= n && st.Webhooks.Pending == 0 }
}

// A JIT runner runs one job. After the job, the runner is deleted and its just-in-time config is
// invalid. Each change of the job has a webhook.
func TestWebhooksOfAJob(t *testing.T) {
	s, hooks := newServerWithWebhooks(t, github.Options{})
	dir := t.TempDir()
	job := s.Queue(control.JobSpec{Labels: []string{"self-hosted", "x"}, Workflow: "Release", Name: "ship", Duration: 10 * time.Millisecond})[0]
	blob := createJITConfig(t, s, "vm-1", "self-hosted", "X", "x64")
	r := githubtest.StartRunner(t, dir, "run", "--jitconfig", blob)
	if code := r.Wait(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, r.Output())
	}
	for _, line := range []string{"√ Connected to GitHub", "Listening for Jobs", "Running job: ship", "Job ship completed with result: Succeeded"} {
		if !strings.Contains(r.Output(), line) {
			t.Errorf("output lacks %q:\n%s", line, r.Output())
		}
	}
	if state := s.State(); len(state.Runners) != 0 || state.Jobs[0].Conclusion != "success" || state.Jobs[0].StartedAt.IsZero() {
		t.Errorf("after the job: %+v", state)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("settings are left: %v", left)
	}
	if again := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", blob); again.Wait() != 1 {
		t.Errorf("a used JIT configuration is accepted:\n%s", again.Output())
	}
	s.WaitUntil("three webhooks are delivered", hasDelivered(3))
	guids := map[string]bool{}
	for i, want := range []string{"queued", "in_progress", "completed"} {
		w := hooks.Webhooks()[i]
		e := parseEvent(t, w)
		j := e.GetWorkflowJob()
		if e.GetAction() != want || j.GetStatus() != want || j.GetID() != job.ID || j.GetRunID() != job.RunID || j.GetName() != "ship" {
			t.Errorf("webhook %d: %s %+v", i, e.GetAction(), j)
		}
		if e.GetRepo().GetFullName() != githubtest.Repo || e.GetOrg().GetLogin() != "octo-org" || j.GetWorkflowName() != "Release" {
			t.Errorf("webhook %d is about %s of %s", i, e.GetRepo().GetFullName(), e.GetOrg().GetLogin())
		}
		if (j.GetRunnerName() == "vm-1") != (want != "queued") || (j.GetConclusion() == "success") != (want == "completed") {
			t.Errorf("webhook %d: runner %q, conclusion %q", i, j.GetRunnerName(), j.GetConclusion())
		}
		if !strings.HasPrefix(w.Header.Get("User-Agent"), "GitHub-Hookshot/") || w.Header.Get("X-Github-Hook-Id") == "" {
			t.Errorf("headers: %v", w.Header)
		}
		guids[w.Header.Get("X-Github-Delivery")] = true
	}
	if len(guids) != 3 {
		t.Errorf("delivery ids: %v", guids)
	}
	w := hooks.Webhooks()[0]
	w.Header.Set("X-Hub-Signature-256", "sha256="+strings.Repeat("0", 64))
	if _, err := gh.ValidatePayload(&http.Request{Header: w.Header, Body: http.NoBody}, []byte(hookSecret)); err == nil {
		t.Error("a wrong signature is accepted, so the check above proves nothing")
	}
}

func TestProtectedEnvironment(t *testing.T) {
	s, hooks := newServerWithWebhooks(t, github.Options{})
	job := s.Queue(control.JobSpec{Labels: []string{"x"}, Environment: "prod"})[0]
	if job.Status != "waiting" {
		t.Errorf("status %q", job.Status)
	}
	requireNoError(t, s.Approve(job.ID))
	s.WaitUntil("two webhooks are delivered", hasDelivered(2))
	first, second := parseEvent(t, hooks.Webhooks()[0]), parseEvent(t, hooks.Webhooks()[1])
	if first.GetAction() != "waiting" || first.GetDeployment().GetEnvironment() != "prod" || second.GetAction() != "queued" {
		t.Errorf("actions %s (%s), %s", first.GetAction(), first.GetDeployment().GetEnvironment(), second.GetAction())
	}
}

// TestDeliveries lists, pages, reads and redelivers deliveries of each kind of hook.
func TestDeliveries(t *testing.T) {
	key := newKey(t)
	cases := map[string]struct {
		opts github.Options
		path string
	}{
		"App":        {github.Options{App: newApp(key, listRunnerPermissions())}, "/app/hook/deliveries"},
		"org":        {github.Options{}, "/orgs/octo-org/hooks/409000001/deliveries"},
		"repository": {github.Options{Repos: []github.Repo{{FullName: "octo-org/octo-repo", UserOwned: true}}}, "/repos/octo-org/octo-repo/hooks/409000001/deliveries"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s, hooks := newServerWithWebhooks(t, tc.opts)
			cred := auth
			if tc.opts.App != nil {
				cred = "Bearer " + newAppJWT(t, key, time.Now())
			}
			hooks.SetStatus(http.StatusInternalServerError)
			s.Queue(control.JobSpec{Labels: []string{"x"}})
			s.WaitUntil("it failed", func(st control.State) bool { return st.Webhooks.Failed == 1 })
			hooks.SetStatus(http.StatusAccepted)
			s.Queue(control.JobSpec{Labels: []string{"x"}, Count: 2})
			s.WaitUntil("two more are delivered", hasDelivered(2))
			page1 := sendRequest(t, s, "GET", tc.path+"?per_page=2", cred, nil)
			next := cutBetween(page1.header.Get("Link"), "<"+s.URL, ">; rel=\"next\"")
			page2 := sendRequest(t, s, "GET", next, cred, nil)
			var failed []struct {
				ID         int64
				GUID       string
				StatusCode int `json:"status_code"`
				Redelivery bool
			}
			requireNoError(t, json.Unmarshal([]byte(page2.text), &failed))
			if len(failed) != 1 || failed[0].StatusCode != http.StatusInternalServerError {
				t.Fatalf("page 2 (%s): %s", next, page2.text)
			}
			one := tc.path + "/" + strconv.FormatInt(failed[0].ID, 10)
			if a := sendRequest(t, s, "GET", one, cred, nil); a.code != 200 || !strings.Contains(a.text, `"X-Hub-Signature-256"`) {
				t.Errorf("one delivery: %d %s", a.code, a.text)
			}
			if a := sendRequest(t, s, "POST", one+"/attempts", cred, nil); a.code != 202 {
				t.Errorf("attempts: %d %s", a.code, a.text)
			}
			s.WaitUntil("it was redelivered", hasDelivered(3))
			got := hooks.Webhooks()
			if first, last := got[0], got[len(got)-1]; first.Header.Get("X-Github-Delivery") != last.Header.Get("X-Github-Delivery") || !bytes.Equal(first.Body, last.Body) {
				t.Error("a redelivery must keep GUID and body")
			}
			if a := sendRequest(t, s, "GET", tc.path+"?status=failure", cred, nil); strings.Count(a.text, `"guid"`) != 1 {
				t.Errorf("failures: %s", a.text)
			}
			for _, missing := range []string{one + "0", one + "0/attempts"} {
				method := map[bool]string{true: "POST", false: "GET"}[strings.HasSuffix(missing, "attempts")]
				if a := sendRequest(t, s, method, missing, cred, nil); a.code != 404 {
					t.Errorf("%s: %d", missing, a.code)
				}
			}
			if a := sendRequest(t, s, "GET", tc.path+"?cursor=v1_zz", cred, nil); a.code != 400 {
				t.Errorf("bad cursor: %d", a.code)
			}
		})
	}
}

func cutBetween(text, from, to string) string {
	_, rest, _ := strings.Cut(text, from)
	part, _, _ := strings.Cut(rest, to)
	return part
}

func TestWebhookTimeoutAndUnreachable(t *testing.T) {
	s, _ := newServerWithWebhooks(t, github.Options{HookTimeout: 50 * time.Millisecond})
	stuck := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
	defer slow.Close()
	defer close(stuck)
	s.SetWebhook(control.WebhookTarget{URL: slow.URL})
	s.Queue(control.JobSpec{Labels: []string{"x"}})
	s.WaitUntil("it timed out", func(st control.State) bool { return st.Webhooks.Failed == 1 })
	s.SetWebhook(control.WebhookTarget{URL: "http://127.0.0.1:1"})
	s.Queue(control.JobSpec{Labels: []string{"x"}})
	s.WaitUntil("it could not connect", func(st control.State) bool { return st.Webhooks.Failed == 2 })
	a := sendRequest(t, s, "GET", "/orgs/octo-org/hooks/409000001/deliveries", auth, nil)
	if !strings.Contains(a.text, "timed out") || !strings.Contains(a.text, "failed to connect to host") {
		t.Errorf("deliveries: %s", a.text)
	}
}

func TestWebhookFaults(t *testing.T) {
	const jobs = 40
	t.Run("lost ones can be found and redelivered", func(t *testing.T) {
		s, hooks := newServerWithWebhooks(t, github.Options{Faults: control.Faults{WebhookLost: 0.5}, Seed: 7})
		s.Queue(control.JobSpec{Labels: []string{"x"}, Count: jobs})
		state := s.WaitUntil("all were tried", func(st control.State) bool { return st.Webhooks.Delivered+st.Webhooks.Lost == jobs })
		if state.Webhooks.Lost == 0 || state.Webhooks.Delivered == 0 || len(hooks.Webhooks()) != state.Webhooks.Delivered {
			t.Errorf("webhooks: %+v, received %d", state.Webhooks, len(hooks.Webhooks()))
		}
		a := sendRequest(t, s, "GET", "/orgs/octo-org/hooks/409000001/deliveries?status=failure&per_page=100", auth, nil)
		if got := strings.Count(a.text, `"guid"`); got != state.Webhooks.Lost {
			t.Errorf("%d failures are listed, %d were lost", got, state.Webhooks.Lost)
		}
	})
	t.Run("duplicated and reordered", func(t *testing.T) {
		clk := newFakeClock()
		s, hooks := newServerWithWebhooks(t, github.Options{Clock: clk, Faults: control.Faults{WebhookDuplicated: 1, WebhookReordered: 0.5}, Seed: 7})
		s.Queue(control.JobSpec{Labels: []string{"x"}, Count: jobs})
		s.WaitUntil("all are delivered twice", func(st control.State) bool {
			clk.Step(100 * time.Millisecond)
			return st.Webhooks.Delivered == 2*jobs
		})
		seen, order, last := map[string]int{}, true, int64(0)
		for _, w := range hooks.Webhooks() {
			seen[w.Header.Get("X-Github-Delivery")]++
			id := parseEvent(t, w).GetWorkflowJob().GetID()
			order = order && id >= last
			last = id
		}
		if len(seen) != jobs || order {
			t.Errorf("%d GUIDs for %d events, in order: %v", len(seen), jobs, order)
		}
	})
	t.Run("the seed decides", func(t *testing.T) {
		lost := func() int {
			s, _ := newServerWithWebhooks(t, github.Options{Faults: control.Faults{WebhookLost: 0.3}, Seed: 99})
			s.Queue(control.JobSpec{Labels: []string{"x"}, Count: jobs})
			return s.State().Webhooks.Lost
		}
		if a, b := lost(), lost(); a != b {
			t.Errorf("the same seed lost %d and %d", a, b)
		}
	})
}

func TestAppInstallationInWebhooks(t *testing.T) {
	s, hooks := newServerWithWebhooks(t, github.Options{
		App:   newApp(newKey(t), listRunnerPermissions(), "octo-org/octo-repo"),
		Repos: []github.Repo{{FullName: "octo-org/octo-repo", Private: true}, {FullName: "octo-org/outside", Private: true}},
	})
	s.Queue(control.JobSpec{Repo: "octo-org/outside", Labels: []string{"x"}}) // the hook does not cover the repository, so no webhook is sent
	s.Queue(control.JobSpec{Repo: "octo-org/octo-repo", Labels: []string{"x"}})
	s.WaitUntil("one is delivered", hasDelivered(1))
	if e := parseEvent(t, hooks.Webhooks()[0]); len(hooks.Webhooks()) != 1 || e.GetInstallation().GetID() != installID {
		t.Errorf("%d webhooks, installation %d", len(hooks.Webhooks()), e.GetInstallation().GetID())
	}
}
