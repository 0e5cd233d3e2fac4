// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

// The payloads have the objects and the values of Buildkite's documentation:
// https://buildkite.com/docs/apis/webhooks/pipelines/job-events around the job, the build
// and the pipeline of https://buildkite.com/docs/apis/rest-api.
const (
	jobUUID = "b63254c0-3271-4a98-8270-7cfbd6c2f14e"

	documentedBuild = `{
		"id": "f62a1b4d-10f9-4790-bc1c-e2c3a0c80983", "number": 1, "state": "running", "blocked": false,
		"url": "https://api.buildkite.com/v2/organizations/my-great-org/pipelines/my-pipeline/builds/1",
		"web_url": "https://buildkite.com/my-great-org/my-pipeline/builds/1",
		"message": "Bumping to version 0.2-beta.6", "commit": "abcd0b72a1e580e90712cdd9eb26d3fb41cd09c8", "branch": "main",
		"env": {}, "source": "webhook", "created_at": "2015-05-09T21:05:59.874Z", "scheduled_at": "2015-05-09T21:05:59.874Z",
		"started_at": "2015-05-09T21:05:59.874Z", "finished_at": null, "meta_data": {}}`
	documentedPipeline = `{
		"id": "849411f9-9e6d-4739-a0d8-e247088e9b52", "name": "My Pipeline", "slug": "my-pipeline",
		"url": "https://api.buildkite.com/v2/organizations/my-great-org/pipelines/my-pipeline",
		"web_url": "https://buildkite.com/my-great-org/my-pipeline", "repository": "git@github.com:acme-inc/my-pipeline.git"}`
	documentedAgent = `{
		"id": "0b461f65-e7be-4c80-888a-ef11d81fd971", "name": "my-agent-123",
		"url": "https://api.buildkite.com/v2/organizations/my-great-org/agents/0b461f65-e7be-4c80-888a-ef11d81fd971"}`
	sender = `{"id": "8a7693f8-dbae-4783-9137-84090fce9045", "name": "Some Person"}`
)

// newEvent returns a documented job event. over replaces fields of its job.
func newEvent(t *testing.T, name string, over map[string]any) []byte {
	t.Helper()

	job := map[string]any{
		"id": jobUUID, "graphql_id": "Sm9iLS0tMTQ4YWQ0MzgtM2E2My00YWIxLWIzMjItNzIxM2Y3YzJhMWFi", "type": "script",
		"name": ":package: Build", "step_key": "build", "step": map[string]any{"id": "...", "signature": nil},
		"priority": map[string]any{"number": 3}, "agent_query_rules": []string{"queue=default", "os=linux"}, "state": "scheduled",
		"build_url": "https://api.buildkite.com/v2/organizations/my-great-org/pipelines/my-pipeline/builds/1",
		"web_url":   "https://buildkite.com/my-great-org/my-pipeline/builds/1#" + jobUUID, "command": "scripts/build.sh",
		"soft_failed": false, "exit_status": nil, "artifact_paths": nil, "agent": nil, "created_at": "2015-05-09T21:05:59.874Z",
		"scheduled_at": "2015-05-09T21:05:59.874Z", "runnable_at": "2015-05-09T21:06:00.000Z", "started_at": nil, "finished_at": nil,
		"expired_at": nil, "retried": false, "retries_count": nil, "cluster_id": nil, "cluster_queue_id": nil,
	}

	maps.Copy(job, over)

	text, err := json.Marshal(map[string]any{
		"event": name, "job": job, "build": json.RawMessage(documentedBuild), "pipeline": json.RawMessage(documentedPipeline),
		"sender": json.RawMessage(sender),
	})
	if err != nil {
		t.Fatal(err)
	}

	return text
}

func newHeaders(name string) http.Header { return http.Header{buildkite.HeaderEvent: {name}} }

func parseTime(text string) *metav1.Time {
	when, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}

	return &metav1.Time{Time: when.UTC()}
}

// newDocumentedJob returns the job of newEvent in state queued.
func newDocumentedJob(change func(*workload.Job)) workload.Job {
	out := workload.Job{
		Platform: v1alpha1.WorkloadBuildkite, ID: jobUUID, Name: ":package: Build", Repository: "my-great-org/my-pipeline",
		Organization: "my-great-org", RunID: "1", Workflow: "My Pipeline", Queue: "default", Priority: 3,
		URL:    "https://buildkite.com/my-great-org/my-pipeline/builds/1#" + jobUUID,
		Labels: []string{"queue=default", "os=linux"}, State: v1alpha1.JobQueued, QueuedAt: parseTime("2015-05-09T21:06:00Z"),
	}
	if change != nil {
		change(&out)
	}

	return out
}

func TestParse(t *testing.T) {
	t.Parallel()

	started := map[string]any{
		"state": "running", "started_at": "2015-05-09T21:06:05.000Z", "agent": json.RawMessage(documentedAgent),
	}
	running := func(j *workload.Job) {
		j.State, j.RunnerName, j.StartedAt = v1alpha1.JobRunning, "my-agent-123", parseTime("2015-05-09T21:06:05Z")
	}
	finished := func(state string, more map[string]any) map[string]any {
		out := map[string]any{"state": state, "exit_status": 0, "finished_at": "2015-05-09T21:06:20.000Z"}
		for _, from := range []map[string]any{started, more} {
			maps.Copy(out, from)
		}

		out["state"] = state

		return out
	}
	over := func(conclusion string) func(*workload.Job) {
		return func(j *workload.Job) {
			running(j)
			j.State, j.Conclusion, j.CompletedAt = v1alpha1.JobCompleted, conclusion, parseTime("2015-05-09T21:06:20Z")
		}
	}
	cases := map[string]struct {
		event string
		over  map[string]any
		want  func(*workload.Job)
	}{
		"scheduled":                              {"job.scheduled", nil, nil},
		"started":                                {"job.started", started, running},
		"finished, passed":                       {"job.finished", finished("passed", nil), over("passed")},
		"finished, failed":                       {"job.finished", finished("failed", map[string]any{"exit_status": 1}), over("failed")},
		"finished, timed out":                    {"job.finished", finished("timed_out", nil), over("timed_out")},
		"finished by its raw word, 0":            {"job.finished", finished("finished", nil), over("passed")},
		"finished by its raw word, 1":            {"job.finished", finished("finished", map[string]any{"exit_status": 1}), over("failed")},
		"finished, with a known raw state":       {"job.finished", finished("finished", map[string]any{"exit_status": nil, "passed": true}), over("passed")},
		"a late event has a later state":         {"job.scheduled", finished("passed", nil), over("passed")},
		"scheduled, and an agent has it already": {"job.scheduled", map[string]any{"state": "assigned"}, func(j *workload.Job) { j.State = v1alpha1.JobRunning }},
		"cancelled before it ran": {"job.finished", map[string]any{"state": "canceled", "finished_at": "2015-05-09T21:06:20Z"}, func(j *workload.Job) {
			j.State, j.Conclusion, j.CompletedAt = v1alpha1.JobCompleted, "canceled", parseTime("2015-05-09T21:06:20Z")
		}},
		"held back by a concurrency limit": {"job.scheduled", map[string]any{"state": "limited"}, func(j *workload.Job) { j.State = v1alpha1.JobWaiting }},
		"any agent can run it": {"job.scheduled", map[string]any{"agent_query_rules": []string{"*"}}, func(j *workload.Job) {
			j.Labels, j.Queue = []string{"*"}, ""
		}},
		"older form of times": {"job.scheduled", map[string]any{"runnable_at": "2019-08-11 06:01:14 UTC"}, func(j *workload.Job) {
			j.QueuedAt = parseTime("2019-08-11T06:01:14Z")
		}},
		"invalid times and priorities are ignored": {
			"job.scheduled", map[string]any{"runnable_at": 7, "scheduled_at": "soon", "created_at": nil, "priority": "high"},
			func(j *workload.Job) { j.QueuedAt, j.Priority = nil, 0 },
		},
		"priority as a number":               {"job.scheduled", map[string]any{"priority": -2}, func(j *workload.Job) { j.Priority = -2 }},
		"priority past any":                  {"job.scheduled", map[string]any{"priority": 1 << 40}, func(j *workload.Job) { j.Priority = 1<<31 - 1 }},
		"the step's key if there is no name": {"job.scheduled", map[string]any{"name": nil}, func(j *workload.Job) { j.Name = "build" }},
		"a long name is cut": {"job.scheduled", map[string]any{"name": strings.Repeat("ü", 2000)}, func(j *workload.Job) {
			j.Name = strings.Repeat("ü", 1024)
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, ok, err := buildkite.Platform{}.ParseJob(newHeaders(tc.event), newEvent(t, tc.event, tc.over))
			if err != nil || !ok {
				t.Fatalf("Parse() = %v, %v", ok, err)
			}

			if diff := cmp.Diff(newDocumentedJob(tc.want), got); diff != "" {
				t.Errorf("Parse() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseIgnoresOtherEvents(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		event string
		body  []byte
	}{
		"a block step is unblocked": {"job.activated", newEvent(t, "job.activated", map[string]any{
			"id": "ded35de2-7de0-4da8-8daa-b4ce0b7f1064", "type": "manual", "label": "Deploy", "state": "unblocked", "web_url": nil,
		})},
		"a trigger step has finished": {"job.finished", newEvent(t, "job.finished", map[string]any{"type": "trigger", "async": true, "state": "finished"})},
		"a wait step":                 {"job.finished", newEvent(t, "job.finished", map[string]any{"type": "waiter"})},
		"a build":                     {"build.running", []byte(`{"event":"build.running","build":` + documentedBuild + `}`)},
		"a ping":                      {"ping", []byte(`{"event":"ping","organization":{"slug":"my-great-org"}}`)},
		"an agent":                    {"agent.connected", []byte(`{"event":"agent.connected","agent":` + documentedAgent + `}`)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if _, ok, err := (buildkite.Platform{}).ParseJob(newHeaders(tc.event), tc.body); ok || err != nil {
				t.Errorf("Parse() = %v, %v, want no job", ok, err)
			}

			scope, err := buildkite.Platform{}.ParseScope(newHeaders(tc.event), tc.body)
			if err != nil || scope.Organization != "my-great-org" {
				t.Errorf("Scope() = %+v, %v", scope, err)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()

	many := make([]string, 101)
	cases := map[string]struct {
		header http.Header
		body   []byte
		want   error
	}{
		"no event":        {http.Header{}, newEvent(t, "job.started", nil), buildkite.ErrNoEvent},
		"no JSON":         {newHeaders("job.started"), []byte("{"), buildkite.ErrPayload},
		"no job":          {newHeaders("job.started"), []byte("{}"), buildkite.ErrPayload},
		"no type":         {newHeaders("job.started"), newEvent(t, "job.started", map[string]any{"type": nil}), buildkite.ErrPayload},
		"id is no UUID":   {newHeaders("job.started"), newEvent(t, "job.started", map[string]any{"id": "../finish"}), buildkite.ErrPayload},
		"unknown state":   {newHeaders("job.started"), newEvent(t, "job.started", map[string]any{"state": "dreaming"}), buildkite.ErrPayload},
		"too many rules":  {newHeaders("job.started"), newEvent(t, "job.started", map[string]any{"agent_query_rules": many}), buildkite.ErrPayload},
		"a rule too long": {newHeaders("job.started"), newEvent(t, "job.started", map[string]any{"agent_query_rules": []string{strings.Repeat("x", 257)}}), buildkite.ErrPayload},
		"no pipeline":     {newHeaders("job.started"), []byte(`{"job":{"id":"` + jobUUID + `","type":"script","state":"running"}}`), buildkite.ErrPayload},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if _, ok, err := (buildkite.Platform{}).ParseJob(tc.header, tc.body); ok || !errors.Is(err, tc.want) {
				t.Errorf("Parse() = %v, %v, want %v", ok, err, tc.want)
			}
		})
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()

	now := time.Unix(1_700_000_000, 0)
	body, key := []byte(`{"event":"ping"}`), []byte("s3cret")
	sign := func(at string, body, key []byte) string {
		return "timestamp=" + at + ",signature=" + hex.EncodeToString(buildkite.Sign(at, body, key))
	}
	signed := func(value string) http.Header { return http.Header{buildkite.HeaderSignature: {value}} }
	token := func(value string) http.Header { return http.Header{buildkite.HeaderToken: {value}} }
	cases := map[string]struct {
		header http.Header
		secret []byte
		want   error
	}{
		"signature":                 {signed(sign("1700000000", body, key)), key, nil},
		"signature with a space":    {signed(strings.Replace(sign("1700000000", body, key), ",", ", ", 1)), key, nil},
		"just young enough":         {signed(sign("1699999700", body, key)), key, nil},
		"too old":                   {signed(sign("1699999699", body, key)), key, buildkite.ErrStale},
		"from the future":           {signed(sign("1700000301", body, key)), key, buildkite.ErrStale},
		"other secret":              {signed(sign("1700000000", body, []byte("x"))), key, workload.ErrSignature},
		"other body":                {signed(sign("1700000000", []byte("{}"), key)), key, workload.ErrSignature},
		"newer timestamp":           {signed(strings.Replace(sign("1600000000", body, key), "1600000000", "1700000000", 1)), key, workload.ErrSignature},
		"time is no number":         {signed(sign("now", body, key)), key, workload.ErrSignature},
		"no hexadecimal":            {signed("timestamp=1700000000,signature=zz"), key, workload.ErrSignature},
		"empty signature":           {signed(""), key, workload.ErrSignature},
		"token":                     {token("s3cret"), key, nil},
		"other token":               {token("s3cret2"), key, workload.ErrSignature},
		"a bad signature wins":      {http.Header{buildkite.HeaderSignature: {"x"}, buildkite.HeaderToken: {"s3cret"}}, key, workload.ErrSignature},
		"neither":                   {http.Header{}, key, buildkite.ErrNoSignature},
		"an empty secret is none":   {token(""), nil, buildkite.ErrNoSecret},
		"signed by an empty secret": {signed(sign("1700000000", body, nil)), []byte{}, buildkite.ErrNoSecret},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			platform := buildkite.Platform{Webhooks: buildkite.Webhooks{Clock: clocktesting.NewFakePassiveClock(now)}}
			if err := platform.Verify(tc.header, body, tc.secret); !errors.Is(err, tc.want) {
				t.Errorf("Verify() = %v, want %v", err, tc.want)
			}
		})
	}
}

// The signature is from the documentation's own code, which is independent of our code: printf
// '1642080837.{"event":"ping"}' | openssl dgst -sha256 -hmac secret.
func TestSignAsDocumented(t *testing.T) {
	t.Parallel()

	const want = "181acbb0e1700ab42d842ee614f6ff52af11575b6f837debd0ae1d835fa4f4eb"

	if got := hex.EncodeToString(buildkite.Sign("1642080837", []byte(`{"event":"ping"}`), []byte("secret"))); got != want {
		t.Errorf("Sign() = %s, want %s", got, want)
	}
}

// The parser never panics, and every parsed job fits into a RunnerJob.
func FuzzWebhook(f *testing.F) {
	for _, name := range []string{"job.scheduled", "job.finished", "ping", ""} {
		f.Add(name, []byte(`{"job":{"id":"`+jobUUID+`","type":"script","state":"passed","priority":{"number":1},"agent_query_rules":["queue=a"]},`+
			`"build":`+documentedBuild+`,"pipeline":`+documentedPipeline+`}`), "timestamp=1,signature=00")
	}

	f.Add("job.started", []byte(`{"job":{"build_url":"https://x/v2/organizations/a","state":"running","type":"script"}}`), ",,==")

	f.Fuzz(func(t *testing.T, name string, body []byte, signature string) {
		header := http.Header{buildkite.HeaderEvent: {name}, buildkite.HeaderSignature: {signature}}
		platform := buildkite.Platform{}

		if err := platform.Verify(header, body, []byte("secret")); err == nil {
			t.Skip("the fuzzer guessed the secret")
		}

		scope, scopeErr := platform.ParseScope(header, body)

		job, ok, err := platform.ParseJob(header, body)
		if !ok {
			return
		}

		switch {
		case err != nil, scopeErr != nil:
			t.Errorf("a job was returned with errors %v, %v", err, scopeErr)
		case scope.Repository != job.Repository || scope.Organization != job.Organization:
			t.Errorf("scope %+v is not that of job %+v", scope, job)
		case job.ID == "" || len(job.ID) > 128 || job.State == "" || len(job.Labels) > 100 || len(job.Repository) > 512 ||
			len([]rune(job.Name)) > 1024 || len(job.URL) > 2048 || len(job.Queue) > 1024 || len([]rune(job.RunnerName)) > 255:
			t.Errorf("job does not fit a RunnerJob: %+v", job)
		}
	})
}
