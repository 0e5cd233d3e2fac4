// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	gh "github.com/google/go-github/v88/github"
)

// TestEndpointsMatchTheExtract tests that the simulator serves every operation of the extract, and no
// other operation.
func TestEndpointsMatchTheExtract(t *testing.T) {
	spec, err := LoadSpec()
	if err != nil {
		t.Fatal(err)
	}
	var described, served []string
	for _, op := range spec.operations {
		described = append(described, op.id)
	}
	for id := range newEndpoints() {
		served = append(served, id)
	}
	slices.Sort(described)
	slices.Sort(served)
	if diff := cmp.Diff(described, served); diff != "" {
		t.Errorf("described (-) and served (+) differ:\n%s", diff)
	}
}

func findOperation(t *testing.T, spec *Spec, id string) *operation {
	t.Helper()
	for _, op := range spec.operations {
		if op.id == id {
			return op
		}
	}
	t.Fatalf("no operation %s", id)
	return nil
}

// TestRepliesAreChecked tests that the validation finds small errors in responses.
func TestRepliesAreChecked(t *testing.T) {
	spec, err := LoadSpec()
	if err != nil {
		t.Fatal(err)
	}
	good := `{"total_count":1,"runners":[{"id":1,"name":"a","os":"Linux","status":"online","busy":false,"labels":[]}]}`
	cases := map[string]struct {
		status int
		body   string
		fails  bool
	}{
		"good":                  {200, good, false},
		"field missing":         {200, `{"total_count":1}`, true},
		"wrong type":            {200, `{"total_count":"1","runners":[]}`, true},
		"runner without labels": {200, `{"total_count":1,"runners":[{"id":1,"name":"a","os":"L","status":"online","busy":false}]}`, true},
		"undescribed status":    {204, ``, true},
		"plain error":           {404, `{"message":"Not Found"}`, false},
		"error of wrong type":   {403, `{"message":7}`, true},
		"error is not JSON":     {502, `oops`, true},
	}
	op := findOperation(t, spec, "actions/list-self-hosted-runners-for-repo")
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/repos/o/r/actions/runners", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			in := op.newInput(r, map[string]string{"owner": "o", "repo": "r"})
			header := http.Header{"Content-Type": {"application/json; charset=utf-8"}}
			err = spec.checkResponse(context.Background(), in, tc.status, header, []byte(tc.body))
			if (err != nil) != tc.fails {
				t.Errorf("error %v, want one: %v", err, tc.fails)
			}
		})
	}
}

// TestOfficialExamples tests that the eight examples exist and that go-github can decode them. A
// webhook of the simulator for the same action and status must have all fields that all examples
// have, and no field that the examples do not have.
func TestOfficialExamples(t *testing.T) {
	shapes, err := loadShapes(newLinks(""))
	if err != nil {
		t.Fatal(err)
	}
	if len(shapes.examples) != 8 {
		t.Fatalf("%d examples, want 8", len(shapes.examples))
	}
	counts := map[string]int{}
	common, union := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, example := range shapes.examples {
		text, err := json.Marshal(example)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := gh.ParseWebHook("workflow_job", text)
		event, ok := parsed.(*gh.WorkflowJobEvent)
		if err != nil || !ok || event.GetWorkflowJob().GetID() == 0 {
			t.Errorf("go-github reads %T, %v", parsed, err)
		}
		counts[event.GetAction()+"/"+event.GetWorkflowJob().GetStatus()]++
		for _, part := range []string{"workflow_job", "repository"} {
			addFields(part, asObject(example[part]), common, union)
		}
	}
	want := map[string]int{"queued/queued": 1, "queued/waiting": 1, "waiting/waiting": 1, "in_progress/in_progress": 3, "completed/completed": 2}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("examples by action/status:\n%s", diff)
	}
	s := &Server{shapes: shapes, opts: Options{}}
	run := &workflowRun{id: 1, workflow: "CI", headSHA: "abc", repo: &repository{id: 5, name: "r", owner: &account{id: 3, login: "o"}}}
	built := s.encodeWebhook(&hook{}, &job{id: 2, run: run, name: "n", labels: []string{"x"}, status: statusQueued}, statusQueued)
	for part := range union {
		for field := range asObject(built[part]) {
			if !union[part][field] {
				t.Errorf("%s.%s is in no example", part, field)
			}
		}
		for field := range common[part] {
			if _, ok := asObject(built[part])[field]; !ok {
				t.Errorf("%s.%s is in every example but not built", part, field)
			}
		}
	}
}

func addFields(part string, fields map[string]any, common, union map[string]map[string]bool) {
	if union[part] == nil {
		common[part], union[part] = map[string]bool{}, map[string]bool{}
		for field := range fields {
			common[part][field] = true
		}
	}
	for field := range fields {
		union[part][field] = true
	}
	for field := range common[part] {
		if _, ok := fields[field]; !ok {
			delete(common[part], field)
		}
	}
}

// TestWebhooksAreChecked tests that the validation finds small errors in payloads.
func TestWebhooksAreChecked(t *testing.T) {
	spec, err := LoadSpec()
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{}`, `{"action":"queued"}`, `x`} {
		if err := spec.checkWebhook("queued", []byte(body)); err == nil {
			t.Errorf("%s passes", body)
		}
	}
	if err := spec.checkWebhook("started", []byte(`{}`)); err == nil {
		t.Error("an unknown action passes")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, opts := range map[string]Options{
		"no repository":     {},
		"URL of no host":    {URL: "github.local", Repos: []Repo{{FullName: "o/r"}}},
		"URL with a slash":  {URL: "https://github.local/", Repos: []Repo{{FullName: "o/r"}}},
		"not OWNER/NAME":    {Repos: []Repo{{FullName: "x"}}},
		"App without key":   {Repos: []Repo{{FullName: "o/r"}}, App: &App{ID: 1}},
		"PAT without token": {Repos: []Repo{{FullName: "o/r"}}, PATs: []PAT{{}}},
		"group, no owner":   {Repos: []Repo{{FullName: "o/r"}}, Groups: []Group{{Owner: "x", Name: "g"}}},
	} {
		if s, err := New(opts); err == nil {
			s.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestRunStatus(t *testing.T) {
	cases := map[string]struct {
		jobs               []*job
		status, conclusion string
	}{
		"all waiting":   {[]*job{{status: statusWaiting}}, statusWaiting, ""},
		"one queued":    {[]*job{{status: statusWaiting}, {status: statusQueued}}, statusQueued, ""},
		"partly done":   {[]*job{{status: statusQueued}, {status: statusCompleted, conclusion: conclusionSuccess}}, statusInProgress, ""},
		"all succeeded": {[]*job{{status: statusCompleted, conclusion: conclusionSuccess}}, statusCompleted, conclusionSuccess},
		"one failed":    {[]*job{{status: statusCompleted, conclusion: conclusionFailure}, {status: statusCompleted, conclusion: conclusionCancelled}}, statusCompleted, conclusionFailure},
		"one cancelled": {[]*job{{status: statusCompleted, conclusion: conclusionSuccess}, {status: statusCompleted, conclusion: conclusionCancelled}}, statusCompleted, conclusionCancelled},
	}
	for name, tc := range cases {
		status, conclusion := (&workflowRun{jobs: tc.jobs}).summarize()
		if status != tc.status || conclusion != tc.conclusion {
			t.Errorf("%s: %s %q, want %s %q", name, status, conclusion, tc.status, tc.conclusion)
		}
	}
}
