// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/simagent"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// A job acquisition token is valid only for its own job.
func TestTokenIsForOneJob(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	call := registerStack(t, server)
	jobs := server.Queue(control.JobSpec{Count: 2})
	token := reserveJob(t, call, jobs[0].Key)
	if got := sendRequest(t, server, token, "GET", "/metrics", ""); got.code != http.StatusUnauthorized {
		t.Errorf("the token is valid for the cluster: %d", got.code)
	}
	session := connectAgent(t, server, token)
	if got := sendRequest(t, server, session, "PUT", "/jobs/"+jobs[1].Key+"/acquire", "", lockHeader, "1"); got.code != http.StatusForbidden {
		t.Errorf("the token acquires another job: %d %s", got.code, got.text)
	}
	server.ExpectViolations(t, 1)
	got := sendRequest(t, server, session, "PUT", "/jobs/"+jobs[0].Key+"/acquire", "", lockHeader, "1")
	jobToken, _ := got.body["token"].(string)
	if got.code != http.StatusOK || jobToken == "" {
		t.Fatalf("acquire: %d %s", got.code, got.text)
	}
	if got := sendRequest(t, server, jobToken, "PUT", "/jobs/"+jobs[1].Key+"/start", `{"started_at":"2026-01-02T03:04:05Z"}`); got.code != http.StatusUnauthorized {
		t.Errorf("a job's token starts another job: %d", got.code)
	}
	if got := sendRequest(t, server, jobToken, "PUT", "/jobs/"+jobs[0].Key+"/finish", `{"exit_status":"0","finished_at":"2026-01-02T03:04:05Z","chunks_failed_count":0}`); got.code != http.StatusUnprocessableEntity {
		t.Errorf("a job is finished before it starts: %d", got.code)
	}
	if got := sendRequest(t, server, session, "PUT", "/jobs/"+jobs[0].Key+"/acquire", "", lockHeader, "1"); got.code != http.StatusUnprocessableEntity {
		t.Errorf("a job is acquired twice: %d", got.code)
	}
}

func TestAgentViolations(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	call := registerStack(t, server)
	job := server.Queue(control.JobSpec{})[0]
	session := connectAgent(t, server, reserveJob(t, call, job.Key))
	if got := sendRequest(t, server, session, "PUT", "/jobs/"+job.Key+"/acquire", ""); got.code != http.StatusUnprocessableEntity {
		t.Errorf("acquired without the lock's header: %d", got.code)
	}
	got := sendRequest(t, server, session, "PUT", "/jobs/"+job.Key+"/acquire", "", lockHeader, "1")
	token, _ := got.body["token"].(string)
	if got := sendRequest(t, server, token, "PUT", "/jobs/"+job.Key+"/start", `{"started_at":"now"}`); got.code != http.StatusUnprocessableEntity {
		t.Errorf("started without a time: %d", got.code)
	}
	if got := sendRequest(t, server, token, "POST", "/jobs/"+job.Key+"/chunks?sequence=1&offset=0&size=3", "abc"); got.code != http.StatusUnprocessableEntity {
		t.Errorf("a chunk that is not compressed: %d", got.code)
	}
	if got := sendRequest(t, server, session, "POST", "/disconnect", ""); got.code != http.StatusUnprocessableEntity {
		t.Errorf("disconnected with a job: %d", got.code)
	}
	server.ExpectViolations(t, 4)
}

func TestAgentOfUnknownQueue(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	call := registerStack(t, server)
	job := server.Queue(control.JobSpec{})[0]
	agent := server.StartAgent(t, job.Key, reserveJob(t, call, job.Key), map[string]string{"BUILDKITE_AGENT_TAGS": "queue=gpu"})
	if code := agent.Wait(); code != simagent.ExitFatal || !strings.Contains(agent.Output(), "buildkite-agent: fatal: ") {
		t.Errorf("exit %d: %s", code, agent.Output())
	}
}

// The simulated agent prints the same lines as the real agent, in the same order.
func TestAgentOutput(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	call := registerStack(t, server)
	job := server.Queue(control.JobSpec{Command: "echo from the job; exit 3"})[0]
	agent := server.StartAgent(t, job.Key, reserveJob(t, call, job.Key), map[string]string{
		"BUILDKITE_AGENT_REFLECT_EXIT_STATUS": "true", "BUILDKITE_WRITE_JOB_LOGS_TO_STDOUT": "true",
	})
	if code := agent.Wait(); code != 3 {
		t.Errorf("exit code %d, want the job's", code)
	}
	at := 0
	for _, line := range []string{
		"NOTICE Starting buildkite-agent v", "INFO   Registering agent with Buildkite...",
		`INFO   Successfully registered agent "agent-1" with tags [queue=default]`, "INFO   Starting 1 Agent(s)",
		"INFO   agent-1 Connecting to Buildkite...", "INFO   agent-1 Attempting to acquire job " + job.Key + "...",
		"INFO   agent-1 Starting job " + job.Key + " for build at https://buildkite.com/acme/app/builds/1", "from the job",
		"INFO   agent-1 Finished job " + job.Key, "INFO   agent-1 Disconnecting...", "INFO   agent-1 Disconnected",
	} {
		found := strings.Index(agent.Output()[at:], line)
		if found < 0 {
			t.Fatalf("%q is not the next line in:\n%s", line, agent.Output())
		}
		at += found
	}
	if got := server.State().Jobs[0]; got.Conclusion != "failure" || got.RunnerName != "agent-1" {
		t.Errorf("job: %+v", got)
	}
}

func TestExitCodesOfTheAgent(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		prepare    func(*testing.T, *buildkitetest.Server, control.Job)
		env        map[string]string
		token      string
		spec       control.JobSpec
		code       int
		wantOutput string
	}{
		"the job fails":    {spec: control.JobSpec{Command: "exit 5"}, code: 0, wantOutput: "Finished job"},
		"reflected status": {spec: control.JobSpec{Command: "exit 5"}, env: map[string]string{"BUILDKITE_AGENT_REFLECT_EXIT_STATUS": "true"}, code: 5},
		"it was cancelled": {prepare: func(t *testing.T, s *buildkitetest.Server, j control.Job) {
			t.Helper()
			if err := s.Cancel(j.ID); err != nil {
				t.Error(err)
			}
		}, token: buildkitetest.Token, code: simagent.ExitNotAcquired, wantOutput: "Buildkite rejected the call to acquire the job"},
		"it is blocked":      {spec: control.JobSpec{Environment: "production"}, token: buildkitetest.Token, code: simagent.ExitJobLocked, wantOutput: "job is locked"},
		"the token is wrong": {token: "bkjat_no", code: simagent.ExitFatal, wantOutput: "401 Unauthorized"},
		"no token":           {env: map[string]string{"BUILDKITE_AGENT_TOKEN": ""}, code: simagent.ExitFatal, wantOutput: "missing token"},
		"no build path":      {env: map[string]string{"BUILDKITE_BUILD_PATH": ""}, code: simagent.ExitFatal, wantOutput: "missing build-path"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := buildkitetest.New(t, buildkite.Options{})
			call := registerStack(t, server)
			job := server.Queue(tc.spec)[0]
			token := tc.token
			if token == "" {
				token = reserveJob(t, call, job.Key)
			}
			if tc.prepare != nil {
				tc.prepare(t, server, job)
			}
			agent := server.StartAgent(t, job.Key, token, tc.env)
			if code := agent.Wait(); code != tc.code || !strings.Contains(agent.Output(), tc.wantOutput) {
				t.Errorf("exit %d, want %d and %q in:\n%s", code, tc.code, tc.wantOutput, agent.Output())
			}
		})
	}
}

// A running job is stopped if it is cancelled, and if its agent is aborted.
func TestRunningJobIsStopped(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		stop       func(*testing.T, *buildkitetest.Server, *buildkitetest.Agent)
		conclusion string
	}{
		"cancelled": {func(t *testing.T, s *buildkitetest.Server, _ *buildkitetest.Agent) {
			t.Helper()
			if err := s.Cancel(1); err != nil {
				t.Error(err)
			}
		}, "cancelled"},
		"agent aborted": {func(_ *testing.T, _ *buildkitetest.Server, a *buildkitetest.Agent) { a.Abort() }, "failure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := buildkitetest.New(t, buildkite.Options{})
			call := registerStack(t, server)
			job := server.Queue(control.JobSpec{Duration: time.Minute})[0]
			agent := server.StartAgent(t, job.Key, reserveJob(t, call, job.Key), nil)
			server.WaitUntil("it runs", func(s control.State) bool { return !s.Jobs[0].StartedAt.IsZero() })
			tc.stop(t, server, agent)
			if code := agent.Wait(); code != simagent.ExitSuccess || !strings.Contains(agent.Output(), "Canceling job") {
				t.Errorf("exit %d: %s", code, agent.Output())
			}
			if got := server.State().Jobs[0].Conclusion; got != tc.conclusion {
				t.Errorf("conclusion %q, want %q", got, tc.conclusion)
			}
		})
	}
}

// After a signal to stop, an agent ends when its job has ended.
func TestAgentFinishesItsJob(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	call := registerStack(t, server)
	job := server.Queue(control.JobSpec{Duration: 300 * time.Millisecond})[0]
	agent := server.StartAgent(t, job.Key, reserveJob(t, call, job.Key), nil)
	server.WaitUntil("it runs", func(s control.State) bool { return !s.Jobs[0].StartedAt.IsZero() })
	agent.Stop()
	if code := agent.Wait(); code != 0 {
		t.Errorf("exit %d: %s", code, agent.Output())
	}
	if got := server.State().Jobs[0].Conclusion; got != "success" {
		t.Errorf("conclusion %q", got)
	}
}

// A job fails if its agent makes no calls.
func TestLostAgent(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	server := buildkitetest.New(t, buildkite.Options{Clock: clk, LostTimeout: time.Minute})
	call := registerStack(t, server)
	job := server.Queue(control.JobSpec{})[0]
	session, _ := acquireJob(t, server, call, job)
	clk.Step(50 * time.Second)
	if got := sendRequest(t, server, session, "POST", "/heartbeat", `{"sent_at":"2026-01-02T03:04:05Z"}`); got.code != http.StatusOK {
		t.Errorf("heartbeat: %d %s", got.code, got.text)
	}
	clk.Step(50 * time.Second)
	if state, _ := server.JobLog(job.Key); state != "accepted" {
		t.Errorf("the job is %s though its agent is connected", state)
	}
	clk.Step(time.Minute)
	state := server.State()
	if state.Jobs[0].Conclusion != "failure" || len(state.Runners) != 0 {
		t.Errorf("after the agent was lost: %+v", state)
	}
	if got := sendRequest(t, server, session, "POST", "/heartbeat", `{"sent_at":"x"}`); got.code != http.StatusUnauthorized {
		t.Errorf("the session of a lost agent is still valid: %d", got.code)
	}
}

// A blocked job is scheduled when it is approved, and the webhooks report this.
func TestApprove(t *testing.T) {
	t.Parallel()
	hooks := buildkitetest.NewReceiver(t)
	server := buildkitetest.New(t, buildkite.Options{Webhook: control.WebhookTarget{URL: hooks.URL, Secret: "s"}, PlainToken: true})
	client := control.NewClient(server.ControlURL)
	jobs, err := client.Queue(t.Context(), control.JobSpec{Repo: buildkitetest.Repo, Labels: []string{"queue=default"}, Environment: "production"})
	if err != nil || jobs[0].Status != "waiting" {
		t.Fatalf("queue: %+v, %v", jobs, err)
	}
	if err := client.Approve(t.Context(), jobs[0].ID); err != nil {
		t.Fatal(err)
	}
	server.WaitUntil("webhooks are delivered", func(s control.State) bool { return s.Webhooks.Delivered == 2 })
	var events []string
	for _, hook := range hooks.Webhooks() {
		var body struct {
			Event string `json:"event"`
		}
		if err := json.Unmarshal(hook.Body, &body); err != nil || body.Event != hook.Header.Get("X-Buildkite-Event") {
			t.Errorf("event %q under header %q: %v", body.Event, hook.Header.Get("X-Buildkite-Event"), err)
		}
		if hook.Header.Get("X-Buildkite-Token") != "s" {
			t.Errorf("headers: %v", hook.Header)
		}
		events = append(events, body.Event)
	}
	if got := strings.Join(events, " "); got != "job.activated job.scheduled" {
		t.Errorf("events: %s", got)
	}
	if err := client.Approve(t.Context(), jobs[0].ID); err == nil {
		t.Error("approved twice")
	}
	if err := client.Cancel(t.Context(), jobs[0].ID); err != nil {
		t.Error(err)
	}
	if err := client.Cancel(t.Context(), 99); err == nil {
		t.Error("an unknown job was cancelled")
	}
}

// The simulator injects and counts faults of webhooks.
func TestFaultsOfWebhooks(t *testing.T) {
	t.Parallel()
	hooks := buildkitetest.NewReceiver(t)
	server := buildkitetest.New(t, buildkite.Options{Webhook: control.WebhookTarget{URL: hooks.URL, Secret: "s"}})
	client := control.NewClient(server.ControlURL)
	if err := client.SetFaults(t.Context(), control.Faults{WebhookLost: 1}); err != nil {
		t.Fatal(err)
	}
	server.Queue(control.JobSpec{Count: 3})
	if err := client.SetFaults(t.Context(), control.Faults{WebhookDuplicated: 1, WebhookReordered: 1}); err != nil {
		t.Fatal(err)
	}
	server.Queue(control.JobSpec{Count: 2})
	server.WaitUntil("webhooks are delivered", func(s control.State) bool { return s.Webhooks.Pending == 0 })
	if err := client.SetFaults(t.Context(), control.Faults{WebhookLost: 2}); err == nil {
		t.Error("a probability of 2 was accepted")
	}
	state, err := client.State(t.Context())
	if err != nil || state.Webhooks.Lost != 3 || state.Webhooks.Duplicated != 2 || state.Webhooks.Delivered != 4 {
		t.Errorf("webhooks: %+v, %v", state.Webhooks, err)
	}
	if err := client.SetWebhook(t.Context(), control.WebhookTarget{}); err != nil {
		t.Fatal(err)
	}
	server.Queue(control.JobSpec{})
	if got := len(hooks.Webhooks()); got != 4 {
		t.Errorf("%d webhooks, want 4", got)
	}
	if list, err := client.Violations(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("violations: %v, %v", list, err)
	}
}

func TestQueueRefuses(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	for name, spec := range map[string]control.JobSpec{
		"other organization": {Repo: "rival/app"},
		"no pipeline":        {Repo: "acme"},
		"no such queue":      {Repo: "acme/app", Labels: []string{"queue=gpu"}},
		"empty label":        {Repo: "acme/app", Labels: []string{""}},
		"too many":           {Repo: "acme/app", Count: 10001},
	} {
		if _, err := server.Server.Queue(spec); err == nil {
			t.Errorf("%s: queued", name)
		}
	}
	if _, err := buildkite.New(buildkite.Options{}); err == nil {
		t.Error("a simulator without a token was created")
	}
}

// An agent reads the repository and its own name from the environment of its job. Without these
// variables, the real agent ends before the job starts.
func TestJobEnvironment(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{Repository: "/srv/git/app.git"})
	call := registerStack(t, server)
	job := server.Queue(control.JobSpec{})[0]
	_, got := acquireJob(t, server, call, job)
	env, _ := got.body["env"].(map[string]any)
	for name, value := range map[string]string{
		"BUILDKITE_REPO": "/srv/git/app.git", "BUILDKITE_COMMIT": "HEAD", "BUILDKITE_BRANCH": "main", "BUILDKITE_AGENT_NAME": "a",
		"BUILDKITE_PIPELINE_PROVIDER": "git", "BUILDKITE_ORGANIZATION_SLUG": buildkitetest.Organization, "BUILDKITE_JOB_ID": job.Key,
	} {
		if env[name] != value {
			t.Errorf("%s is %v, want %s", name, env[name], value)
		}
	}
}

// The jobs of a build share its meta-data.
func TestMetadata(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	call := registerStack(t, server)
	jobs := server.Queue(control.JobSpec{Count: 2})
	other := server.Queue(control.JobSpec{})[0]
	newCaller := func(job control.Job) func(verb, body string) response {
		_, got := acquireJob(t, server, call, job)
		token, _ := got.body["token"].(string)
		return func(verb, body string) response {
			return sendRequest(t, server, token, "POST", "/jobs/"+job.Key+"/data/"+verb, body)
		}
	}
	first, second, third := newCaller(jobs[0]), newCaller(jobs[1]), newCaller(other)
	const key = `{"key":"buildkite:git:commit"}`
	if got := first("exists", key); got.code != http.StatusOK || got.body["exists"] != false {
		t.Errorf("before it is set: %d %s", got.code, got.text)
	}
	if got := first("get", key); got.code != http.StatusNotFound {
		t.Errorf("get before it is set: %d %s", got.code, got.text)
	}
	if got := first("set", `{"key":"buildkite:git:commit","value":"abc"}`); got.code != http.StatusOK {
		t.Fatalf("set: %d %s", got.code, got.text)
	}
	if got := second("exists", key); got.body["exists"] != true {
		t.Errorf("in another job of the build: %s", got.text)
	}
	if got := second("get", key); got.body["value"] != "abc" {
		t.Errorf("get in another job of the build: %s", got.text)
	}
	if got := second("keys", ""); got.text != `["buildkite:git:commit"]` {
		t.Errorf("keys: %s", got.text)
	}
	if got := third("exists", key); got.body["exists"] != false {
		t.Errorf("in another build: %s", got.text)
	}
	for _, body := range []string{`{"key":""}`, `{"key":"a"}`} {
		if got := first("set", body); got.code != http.StatusUnprocessableEntity {
			t.Errorf("set %s: %d", body, got.code)
		}
	}
}

// An agent first requests a stream of pings. The request is not a violation although there is no stream.
func TestNoStreams(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	url := strings.TrimSuffix(server.Endpoint, "/v3") + "/agentedge.v1.AgentEdgeService/StreamPings"
	resp, err := http.Post(url, "application/grpc", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("status %s, want 404", resp.Status)
	}
}

// Buildkite ignores unknown fields. The simulator records them as violations.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	server := buildkitetest.New(t, buildkite.Options{})
	got := sendRequest(t, server, buildkitetest.Token, "POST", "/stacks/register",
		`{"key":"k","type":"custom","queue_key":"default","metadata":{},"colour":"red"}`)
	if got.code != http.StatusCreated {
		t.Errorf("registered with an unknown field: %d %s", got.code, got.text)
	}
	server.ExpectViolations(t, 1)
}
