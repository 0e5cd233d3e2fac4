// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// webhookBody is the body of a webhook.
type webhookBody struct {
	ID, Source, Name, State, Conclusion, URL string
	Labels                                   []string
}

// decodeWebhook validates the signature of a Standard Webhook and decodes its body. The tests of
// workload/generic test that HyperFleet can decode the webhook, too.
func decodeWebhook(t *testing.T, hook generictest.Webhook) webhookBody {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(generictest.Secret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", hook.Header.Get("Webhook-Id"), hook.Header.Get("Webhook-Timestamp"), hook.Body)
	if want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); hook.Header.Get("Webhook-Signature") != want {
		t.Fatalf("signature %q, want %q", hook.Header.Get("Webhook-Signature"), want)
	}
	var out webhookBody
	decoder := json.NewDecoder(bytes.NewReader(hook.Body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&out); err != nil {
		t.Fatalf("read %s: %v", hook.Body, err)
	}
	return out
}

// post sends one request of a command.
func post(t *testing.T, url, media, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", media)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var output struct{ Message string }
	_ = json.NewDecoder(resp.Body).Decode(&output)
	return resp.StatusCode, output.Message
}

func TestUpdatesComeInOrder(t *testing.T) {
	t.Parallel()
	r := generictest.NewReceiver(t, nil)
	s := generictest.New(t, generic.Options{Updates: true, Webhook: control.WebhookTarget{URL: r.URL}})
	job := s.Queue(control.JobSpec{})[0]
	for _, call := range [][2]string{{"/started", `{"by":"vm-1"}`}, {"/finished", `{"conclusion":"failure"}`}} {
		if code, output := post(t, s.URL+"/jobs/"+job.Key+call[0], "application/json", call[1]); code != http.StatusNoContent {
			t.Fatalf("%d %s", code, output)
		}
	}
	state := s.WaitUntil("all are delivered", func(st control.State) bool { return st.Webhooks.Delivered == 3 })
	var got []string
	for _, hook := range r.Webhooks() {
		job := decodeWebhook(t, hook)
		got = append(got, job.State+job.Conclusion)
	}
	if diff := cmp.Diff([]string{"", "running", "completedfailure"}, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	j := state.Jobs[0]
	if j.Status != "completed" || j.Conclusion != "failure" || j.RunnerName != "vm-1" || j.StartedAt.IsZero() || j.CompletedAt.IsZero() {
		t.Errorf("job %+v", j)
	}
}

// TestWebhooksAreRetried tests that a webhook without a 2xx response is sent again with the same id,
// a new signature and a growing delay.
func TestWebhooksAreRetried(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	r := generictest.NewReceiver(t, func(n int, _ generictest.Webhook) int { return []int{503, 500, 404, 202}[n-1] })
	s := generictest.New(t, generic.Options{Clock: clk, MaxRetryDelay: 3 * time.Second, Webhook: control.WebhookTarget{URL: r.URL}})
	s.Queue(control.JobSpec{})
	for n, wait := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second} {
		s.WaitUntil("an attempt has failed", func(st control.State) bool { return st.Webhooks.Failed == n+1 && st.Webhooks.Pending == 1 })
		waitForTimer(t, clk)
		clk.Step(wait - time.Millisecond)
		if got := len(r.Webhooks()); got != n+1 {
			t.Fatalf("%d attempts before %s", got, wait)
		}
		waitForTimer(t, clk)
		clk.Step(wait/5 + 2*time.Millisecond)
	}
	s.WaitUntil("it is delivered", func(st control.State) bool { return st.Webhooks.Delivered == 1 && st.Webhooks.Pending == 0 })
	hooks := r.Webhooks()
	stamps := map[string]bool{}
	for _, hook := range hooks {
		stamps[hook.Header.Get("Webhook-Timestamp")] = true
		if hook.Header.Get("Webhook-Id") != hooks[0].Header.Get("Webhook-Id") || !bytes.Equal(hook.Body, hooks[0].Body) {
			t.Error("another try is another webhook")
		}
	}
	if len(hooks) != 4 || len(stamps) != 4 {
		t.Errorf("%d attempts, %d timestamps", len(hooks), len(stamps))
	}
}

func waitForTimer(t *testing.T, clk *clocktesting.FakeClock) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !clk.HasWaiters(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no goroutine waits for the clock")
		}
	}
}

func TestUnreachableReceiver(t *testing.T) {
	t.Parallel()
	r := generictest.NewReceiver(t, func(int, generictest.Webhook) int { return http.StatusGone })
	s := generictest.New(t, generic.Options{RetryDelay: time.Millisecond, Webhook: control.WebhookTarget{URL: r.URL}})
	s.Queue(control.JobSpec{})
	s.WaitUntil("the webhook is given up", func(st control.State) bool { return st.Webhooks.Failed == 1 && st.Webhooks.Pending == 0 })
}

// TestFaultsStillDeliverAll tests that each webhook arrives at least once although faults drop,
// duplicate and reorder webhooks.
func TestFaultsStillDeliverAll(t *testing.T) {
	t.Parallel()
	const jobs = 40
	var (
		mu   sync.Mutex
		seen = map[string]int{}
	)
	r := generictest.NewReceiver(t, func(n int, hook generictest.Webhook) int {
		var output struct{ ID string }
		_ = json.Unmarshal(hook.Body, &output)
		if n%7 == 0 {
			return http.StatusServiceUnavailable
		}
		mu.Lock()
		defer mu.Unlock()
		seen[output.ID]++
		return http.StatusAccepted
	})
	s := generictest.New(t, generic.Options{
		RetryDelay: time.Millisecond, MaxRetryDelay: 5 * time.Millisecond, Seed: 7,
		Webhook: control.WebhookTarget{URL: r.URL},
		Faults:  control.Faults{WebhookLost: 0.3, WebhookDuplicated: 0.2, WebhookReordered: 0.2},
	})
	s.Queue(control.JobSpec{Count: jobs})
	state := s.WaitUntil("nothing is pending", func(st control.State) bool { return st.Webhooks.Pending == 0 })
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != jobs {
		t.Errorf("webhooks came for %d of %d jobs", len(seen), jobs)
	}
	if w := state.Webhooks; w.Lost == 0 || w.Duplicated == 0 || w.Failed == 0 || w.Delivered != jobs+w.Duplicated {
		t.Errorf("counts %+v", w)
	}
}

func TestJobsWaitAndAreCancelled(t *testing.T) {
	t.Parallel()
	r := generictest.NewReceiver(t, nil)
	s := generictest.New(t, generic.Options{Webhook: control.WebhookTarget{URL: r.URL}})
	client := control.NewClient(s.ControlURL)
	jobs, err := client.Queue(t.Context(), control.JobSpec{Environment: "prod", Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	if state := s.State(); state.Jobs[0].Status != "waiting" || state.Webhooks.Pending+state.Webhooks.Delivered != 0 {
		t.Fatalf("%+v", state)
	}
	for i, act := range []error{
		client.Approve(t.Context(), jobs[0].ID), client.Cancel(t.Context(), jobs[0].ID), client.Cancel(t.Context(), jobs[1].ID),
	} {
		if act != nil {
			t.Fatalf("%d: %v", i, act)
		}
	}
	s.WaitUntil("both webhooks of the one are delivered", func(st control.State) bool { return st.Webhooks.Delivered == 2 })
	if last := decodeWebhook(t, r.Webhooks()[1]); last.State != "completed" || last.Conclusion != "cancelled" || last.ID != jobs[0].Key {
		t.Errorf("%+v", last)
	}
	for name, err := range map[string]error{
		"cancel twice": client.Cancel(t.Context(), jobs[0].ID), "approve a job that is not blocked": client.Approve(t.Context(), jobs[1].ID),
		"no such job": client.Cancel(t.Context(), 1),
	} {
		if err == nil {
			t.Errorf("%s is possible", name)
		}
	}
	state, err := client.State(t.Context())
	if err != nil || len(state.Jobs) != 2 {
		t.Errorf("%+v, %v", state, err)
	}
	if list, err := client.Violations(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]generic.Options{
		"empty source":   {Sources: []string{""}},
		"signature":      {Signature: "none"},
		"URL":            {URL: "nowhere"},
		"broken secret":  {Webhook: control.WebhookTarget{Secret: "whsec_***"}},
		"not a fraction": {Faults: control.Faults{ServerError: -1}},
	} {
		if sim, err := generic.New(opts); err == nil {
			sim.Close()
			t.Errorf("options with a wrong %s are accepted", name)
		}
	}
}

func TestCommandCalls(t *testing.T) {
	t.Parallel()
	const media = "application/json"
	s := generictest.New(t, generic.Options{})
	jobs := s.Queue(control.JobSpec{Count: 3})
	url := func(i int, path string) string { return s.URL + "/jobs/" + jobs[i].Key + path }
	steps := []struct {
		name, url, media, body string
		code, violations       int
	}{
		{"unknown path", s.URL + "/other", media, "{}", 501, 1},
		{"unknown job", s.URL + "/jobs/gen-1/started", media, `{"by":""}`, 404, 1},
		{"finish before it is started", url(0, "/finished"), media, `{"conclusion":"success"}`, 409, 1},
		{"no JSON by its type", url(0, "/started"), "text/plain", `{"by":""}`, 400, 1},
		{"unknown field", url(0, "/started"), media, `{"runner":"x"}`, 400, 1},
		{"two objects", url(0, "/started"), media, `{"by":"x"}{}`, 400, 1},
		{"start", url(0, "/started"), media, `{"by":"x"}`, 204, 0},
		{"start again by another machine", url(0, "/started"), media, `{"by":"y"}`, 204, 0},
		{"unknown conclusion", url(0, "/finished"), media, `{"conclusion":"fine"}`, 400, 1},
		{"finish", url(0, "/finished"), media, `{"conclusion":"success"}`, 204, 0},
		{"finish twice", url(0, "/finished"), media, `{"conclusion":"success"}`, 409, 1},
		{"start a finished job", url(0, "/started"), media, `{"by":"x"}`, 409, 1},
	}
	for _, step := range steps {
		if code, output := post(t, step.url, step.media, step.body); code != step.code {
			t.Errorf("%s: %d %s, want %d", step.name, code, output, step.code)
		}
		if listed, err := control.NewClient(s.ControlURL).Violations(t.Context()); err != nil || len(listed) != step.violations {
			t.Errorf("%s: the control API returns violations %v, %v", step.name, listed, err)
		}
		if got := s.TakeViolations(); len(got) != step.violations {
			t.Errorf("%s: violations %v, want %d", step.name, got, step.violations)
		}
	}
	state := s.State()
	if j := state.Jobs[0]; j.Requeues != 1 || j.RunnerName != "y" || j.Conclusion != "success" {
		t.Errorf("job %+v", j)
	}
	if err := s.Cancel(jobs[1].ID); err != nil {
		t.Fatal(err)
	}
	if code, _ := post(t, url(1, "/started"), media, `{"by":"x"}`); code != http.StatusConflict {
		t.Errorf("a cancelled job can be started: %d", code)
	}
	s.ExpectViolations(t, 0) // the command does not know about the cancellation
	if err := s.SetFaults(control.Faults{ServerError: 1}); err != nil {
		t.Fatal(err)
	}
	if code, _ := post(t, url(2, "/started"), media, `{"by":"x"}`); code != http.StatusBadGateway || s.State().Jobs[2].Status != "queued" {
		t.Errorf("the status with an injected fault is %d", code)
	}
}
