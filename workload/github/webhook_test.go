// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func newEventHeader(event string) http.Header {
	return http.Header{http.CanonicalHeaderKey(github.HeaderEvent): {event}}
}

// readExamples returns GitHub's own payloads. See the NOTICE file next to them.
func readExamples(tb testing.TB) []json.RawMessage {
	tb.Helper()

	text, err := os.ReadFile("../../sim/github/payloads/workflow_job.json")
	if err != nil {
		tb.Fatal(err)
	}

	var out []json.RawMessage
	if err := json.Unmarshal(text, &out); err != nil {
		tb.Fatal(err)
	}

	return out
}

func parseTime(t *testing.T, text string) *metav1.Time {
	t.Helper()

	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}

	return &metav1.Time{Time: at}
}

// All eight workflow_job examples that GitHub publishes (@octokit/webhooks-examples).
func TestParseAllEightOfficialExamples(t *testing.T) {
	t.Parallel()

	// The order is that of the examples. One of them has action "queued" and status "waiting". The status
	// counts.
	names := []struct {
		name  string
		state v1alpha1.JobState
	}{
		{"in_progress, with its own labels", v1alpha1.JobRunning},
		{"completed, failure", v1alpha1.JobCompleted},
		{"completed, success", v1alpha1.JobCompleted},
		{"in_progress, of a user's repository", v1alpha1.JobRunning},
		{"in_progress, with many steps", v1alpha1.JobRunning},
		{"queued", v1alpha1.JobQueued},
		{"queued by action, waiting by status", v1alpha1.JobWaiting},
		{"waiting", v1alpha1.JobWaiting},
	}

	all := readExamples(t)
	if len(all) != len(names) {
		t.Fatalf("%d examples, want %d", len(all), len(names))
	}

	jobs := make([]workload.Job, 0, len(all))

	for i, body := range all {
		job, ok, err := github.Webhooks{}.ParseJob(newEventHeader("workflow_job"), body)
		if err != nil || !ok || job.State != names[i].state || len(job.Labels) == 0 {
			t.Fatalf("example %d, %s: %t, %v, %+v", i, names[i].name, ok, err, job)
		}

		jobs = append(jobs, job)
	}

	if jobs[5].RunnerName != "" || jobs[5].StartedAt != nil {
		t.Errorf("a queued job has runner %q and start %v", jobs[5].RunnerName, jobs[5].StartedAt)
	}

	if jobs[5].Organization != "" {
		t.Errorf("organization = %q of an event without one", jobs[5].Organization)
	}

	completed := workload.Job{
		Platform: v1alpha1.WorkloadGitHubActions, ID: "289782451", Name: "linters",
		Repository: "Codertocat/Hello-World", Organization: "Octocoders", RunID: "2202229078",
		Workflow: "CodeQL", URL: "https://github.com/octo-org/octo-repo/runs/1291536064", Labels: []string{"ubuntu-latest"}, State: v1alpha1.JobCompleted,
		Conclusion: "failure", RunnerName: "GitHub Actions 5", QueuedAt: parseTime(t, "2021-08-05T10:33:58Z"),
		StartedAt: parseTime(t, "2021-08-05T10:34:58Z"), CompletedAt: parseTime(t, "2021-08-05T10:38:16Z"),
	}
	if diff := cmp.Diff(completed, jobs[1]); diff != "" {
		t.Errorf("completed (-want +got):\n%s", diff)
	}
}

func newEvent(status string, edit func(job, event map[string]any)) []byte {
	job := map[string]any{"id": 5, "status": status, "labels": []string{"self-hosted"}, "created_at": "2026-01-02T03:04:05Z"}
	out := map[string]any{"action": "queued", "workflow_job": job, "repository": map[string]any{"full_name": "acme/app"}}

	if edit != nil {
		edit(job, out)
	}

	text, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}

	return text
}

func TestParseOddEvents(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("é", 5000)
	tests := map[string]struct {
		header http.Header
		body   []byte
		ok     bool
		err    error
		check  func(workload.Job) bool
	}{
		"a ping":          {header: newEventHeader("ping"), body: []byte(`{"zen":"x","hook_id":1}`)},
		"no event header": {header: http.Header{}, body: newEvent("queued", nil), err: github.ErrNoEvent},
		"not JSON":        {header: newEventHeader("workflow_job"), body: []byte("payload=%7B"), err: github.ErrPayload},
		"cut off":         {header: newEventHeader("workflow_job"), body: newEvent("queued", nil)[:40], err: github.ErrPayload},
		"null":            {header: newEventHeader("workflow_job"), body: []byte("null"), err: github.ErrPayload},
		"unknown status":  {header: newEventHeader("workflow_job"), body: newEvent("dreaming", nil), err: github.ErrPayload},
		"no repository": {
			header: newEventHeader("workflow_job"), body: newEvent("queued", func(_, e map[string]any) { delete(e, "repository") }),
			err: github.ErrPayload,
		},
		"a repository with a path": {
			header: newEventHeader("workflow_job"), err: github.ErrPayload,
			body: newEvent("queued", func(_, e map[string]any) { e["repository"] = map[string]any{"full_name": "a/b/../c"} }),
		},
		"too many labels": {
			header: newEventHeader("workflow_job"), err: github.ErrPayload,
			body: newEvent("queued", func(j, _ map[string]any) { j["labels"] = make([]string, 101) }),
		},
		"a label too long": {
			header: newEventHeader("workflow_job"), err: github.ErrPayload,
			body: newEvent("queued", func(j, _ map[string]any) { j["labels"] = []string{long} }),
		},
		"pending means waiting": {
			header: newEventHeader("workflow_job"), body: newEvent("pending", nil), ok: true,
			check: func(j workload.Job) bool { return j.State == v1alpha1.JobWaiting },
		},
		"an invalid time is ignored": {
			header: newEventHeader("workflow_job"), ok: true,
			body:  newEvent("queued", func(j, _ map[string]any) { j["created_at"] = 17 }),
			check: func(j workload.Job) bool { return j.QueuedAt == nil },
		},
		"long names are cut between characters, long links are dropped": {
			header: newEventHeader("workflow_job"), ok: true,
			body: newEvent("in_progress", func(j, _ map[string]any) {
				j["name"], j["workflow_name"], j["html_url"], j["runner_name"] = long, long, long, long
			}),
			check: func(j workload.Job) bool {
				return utf8.RuneCountInString(j.Name) == 1024 && utf8.RuneCountInString(j.Workflow) == 1024 &&
					j.URL == "" && utf8.RuneCountInString(j.RunnerName) == 255 && utf8.ValidString(j.Name)
			},
		},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			job, ok, err := github.Webhooks{}.ParseJob(test.header, test.body)
			if ok != test.ok || !errors.Is(err, test.err) || (err != nil) != (test.err != nil) {
				t.Fatalf("Parse = %t, %v; want %t, %v", ok, err, test.ok, test.err)
			}

			if test.check != nil && !test.check(job) {
				t.Errorf("job = %+v", job)
			}
		})
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()

	// GitHub's own test values, from "Validating webhook deliveries".
	secret, body := []byte("It's a Secret to Everybody"), []byte("Hello, World!")

	const good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"

	tests := map[string]struct {
		signature string
		secret    []byte
		body      []byte
		want      error
	}{
		"right":                   {good, secret, body, nil},
		"another body":            {good, secret, []byte("Hello, World?"), workload.ErrSignature},
		"another secret":          {good, []byte("x"), body, workload.ErrSignature},
		"not signed":              {"", secret, body, github.ErrNoSignature},
		"cut off":                 {good[:len(good)-2], secret, body, workload.ErrSignature},
		"empty":                   {"sha256=", secret, body, workload.ErrSignature},
		"not hexadecimal":         {"sha256=zz", secret, body, workload.ErrSignature},
		"SHA-1 is not sufficient": {"sha1=01dc10d0c83e72ed246219cdd91669667fe2ca59", secret, body, workload.ErrSignature},
		"no secret": {
			"sha256=" + hex.EncodeToString(github.Sign(body, nil)), nil, body, github.ErrNoSecret,
		},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			header := http.Header{}
			if test.signature != "" {
				header.Set(github.HeaderSignature, test.signature)
			}

			if err := (github.Webhooks{}).Verify(header, test.body, test.secret); !errors.Is(err, test.want) {
				t.Errorf("Verify = %v, want %v", err, test.want)
			}
		})
	}
}

func TestScope(t *testing.T) {
	t.Parallel()

	for body, want := range map[string]workload.Scope{
		`{"repository":{"full_name":"acme/app"},"organization":{"login":"acme"}}`: {Repository: "acme/app", Organization: "acme"},
		`{"repository":{"full_name":"me/app"},"organization":null}`:               {Repository: "me/app"},
		`{"zen":"Keep it logically awesome."}`:                                    {},
	} {
		got, err := github.Webhooks{}.ParseScope(newEventHeader("ping"), []byte(body))
		if err != nil || got != want {
			t.Errorf("Scope(%s) = %+v, %v; want %+v", body, got, err, want)
		}
	}

	if _, err := (github.Webhooks{}).ParseScope(http.Header{}, []byte("{}")); !errors.Is(err, github.ErrNoEvent) {
		t.Errorf("no event header: %v", err)
	}

	if _, err := (github.Webhooks{}).ParseScope(newEventHeader("ping"), []byte("<xml/>")); !errors.Is(err, github.ErrPayload) {
		t.Errorf("not JSON: %v", err)
	}
}

// Every parsed job fits into a RunnerJob.
func FuzzWebhook(f *testing.F) {
	for _, example := range readExamples(f) {
		f.Add("workflow_job", []byte(example))
	}

	f.Add("ping", []byte("{}"))
	f.Add("workflow_job", newEvent("queued", nil))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		before := bytes.Clone(body)
		header := newEventHeader(name)
		_, _ = github.Webhooks{}.ParseScope(header, body)
		_ = github.Webhooks{}.Verify(header, body, []byte("secret"))
		job, ok, err := github.Webhooks{}.ParseJob(header, body)

		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}

		if ok == (err != nil) && ok {
			t.Fatal("got a job and an error")
		}

		if ok {
			if problem := findInvalidField(job); problem != "" {
				t.Fatalf("%s: %+v", problem, job)
			}
		}
	})
}

func findInvalidField(job workload.Job) string {
	for _, field := range []struct {
		text  string
		limit int
	}{
		{job.ID, 128}, {job.RunID, 128}, {job.Name, 1024}, {job.Workflow, 1024}, {job.Repository, 512}, {job.Organization, 255},
		{job.URL, 2048}, {job.Conclusion, 64}, {job.RunnerName, 255},
	} {
		if utf8.RuneCountInString(field.text) > field.limit {
			return fmt.Sprintf("%q is longer than %d", field.text, field.limit)
		}
	}

	if job.ID == "" || job.State == "" || len(job.Labels) > 100 {
		return "no id, no state or too many labels"
	}

	if _, err := json.Marshal(job); err != nil {
		return err.Error()
	}

	return ""
}
