// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/generic"
)

const completeBody = `{"id":"7","source":"nightly/scans","name":"scan all","state":"completed","conclusion":"success",` +
	`"labels":["linux","gpu"],"url":"https://ci.example/jobs/7"}`

func TestParse(t *testing.T) {
	t.Parallel()

	job := func(edit func(*workload.Job)) workload.Job {
		out := workload.Job{Platform: v1alpha1.WorkloadGeneric, ID: "7", Repository: "s", State: v1alpha1.JobQueued}
		if edit != nil {
			edit(&out)
		}

		return out
	}

	for name, tc := range map[string]struct {
		body string
		want workload.Job
	}{
		"the least that does":   {`{"id":"7","source":"s"}`, job(nil)},
		"queued by name":        {`{"id":"7","source":"s","state":"queued"}`, job(nil)},
		"running":               {`{"id":"7","source":"s","state":"running"}`, job(func(j *workload.Job) { j.State = v1alpha1.JobRunning })},
		"completed without end": {`{"id":"7","source":"s","state":"completed"}`, job(func(j *workload.Job) { j.State = v1alpha1.JobCompleted })},
		"no labels":             {`{"id":"7","source":"s","labels":null}`, job(nil)},
		"everything": {completeBody, workload.Job{
			Platform: v1alpha1.WorkloadGeneric, ID: "7", Repository: "nightly/scans", Name: "scan all", State: v1alpha1.JobCompleted,
			Conclusion: "success", Labels: []string{"linux", "gpu"}, URL: "https://ci.example/jobs/7",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, ok, err := generic.Webhooks{}.ParseJob(nil, []byte(tc.body))
			if err != nil || !ok {
				t.Fatalf("%t, %v", ok, err)
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("job (-want +got):\n%s", diff)
			}

			scope, err := generic.Webhooks{}.ParseScope(nil, []byte(tc.body))
			if err != nil || scope != (workload.Scope{Repository: tc.want.Repository}) {
				t.Errorf("scope %+v, %v", scope, err)
			}
		})
	}
}

// listBadBodies returns bodies that ParseJob rejects, with a part of the expected error.
func listBadBodies() map[string]struct{ body, want string } {
	long := func(n int) string { return strings.Repeat("ü", n) }
	field := func(text string) string { return `{"id":"7","source":"s",` + text + `}` }

	return map[string]struct{ body, want string }{
		"empty":                       {"", "the body is incomplete"},
		"cut off":                     {completeBody[:40], "the body is incomplete"},
		"form":                        {"payload=%7B%7D", "not valid JSON at byte 1"},
		"null":                        {"null", "source is missing"},
		"a list":                      {"[]", "body: expected a JSON object, got array"},
		"two objects":                 {`{"id":"7","source":"s"}{}`, "is followed by more data"},
		"unknown field":               {field(`"repo":"x"`), `unknown field "repo": known fields are id, source,`},
		"no source":                   {`{"id":"7"}`, "source is missing"},
		"empty source":                {`{"id":"7","source":""}`, "source is missing"},
		"odd source":                  {`{"id":"7","source":"a b"}`, "source must be a name"},
		"long source":                 {`{"id":"7","source":"` + strings.Repeat("s", 256) + `"}`, "source must be a name"},
		"no id":                       {`{"source":"s"}`, "id is missing"},
		"a number as id":              {`{"id":7,"source":"s"}`, "id: expected a string, got number"},
		"long id":                     {`{"source":"s","id":"` + long(129) + `"}`, "id has more than 128 characters"},
		"a line in the id":            {`{"source":"s","id":"a\nb"}`, "id contains a control character"},
		"unknown state":               {field(`"state":"done"`), "state must be queued, running or completed"},
		"empty state":                 {field(`"state":""`), "state must be"},
		"conclusion of a running job": {field(`"conclusion":"success"`), "conclusion is only allowed for jobs in state completed"},
		"long conclusion":             {field(`"state":"completed","conclusion":"` + long(65) + `"`), "conclusion has more than 64"},
		"long name":                   {field(`"name":"` + long(1025) + `"`), "name has more than 1024"},
		"zero byte":                   {field(`"name":"a\u0000b"`), "name contains a control character"},
		"no URL":                      {field(`"url":"ftp://x"`), "url must begin with"},
		"long URL":                    {field(`"url":"https://x/` + long(2048) + `"`), "url has more than 2048"},
		"labels as a text":            {field(`"labels":"a,b"`), "labels: expected a list of strings, got string"},
		"a label as a number":         {field(`"labels":[1]`), "labels: expected a string, got number"},
		"too many labels":             {field(`"labels":["x"` + strings.Repeat(`,"x"`, 100) + `]`), "labels has 101 entries"},
		"empty label":                 {field(`"labels":["a"," "]`), "labels[1] is empty"},
		"label with a comma":          {field(`"labels":["a,b"]`), "labels[0] contains a comma"},
		"long label":                  {field(`"labels":["` + long(257) + `"]`), "labels[0] has more than 256"},
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()

	for name, tc := range listBadBodies() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, ok, err := generic.Webhooks{}.ParseJob(nil, []byte(tc.body))
			if ok || !errors.Is(err, generic.ErrPayload) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%t, %v; want %q", ok, err, tc.want)
			}
		})
	}
}

func TestScopeErrors(t *testing.T) {
	t.Parallel()

	for name, body := range map[string]string{
		"empty": "", "not JSON": "x", "two objects": `{"source":"s"}{"source":"t"}`, "no source": `{"id":"1"}`, "odd source": `{"source":"../x y"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if scope, err := (generic.Webhooks{}).ParseScope(nil, []byte(body)); !errors.Is(err, generic.ErrPayload) {
				t.Errorf("%+v, %v", scope, err)
			}
		})
	}
}

// FuzzWebhook checks that every accepted job fits into a RunnerJob and belongs to the scope that
// its secret was chosen by, and that no webhook is trusted without a valid signature.
func FuzzWebhook(f *testing.F) {
	for _, tc := range listBadBodies() {
		if len(tc.body) < 500 {
			f.Add([]byte(tc.body), "v1,AAAA", "1614265330", "sha256=00")
		}
	}

	f.Add([]byte(completeBody), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "1614265330", "")
	f.Fuzz(func(t *testing.T, body []byte, signature, timestamp, hub string) {
		header := http.Header{}
		header.Set(generic.HeaderID, "msg_1")
		header.Set(generic.HeaderTimestamp, timestamp)
		header.Set(generic.HeaderSignature, signature)
		header.Set(generic.HeaderHubSignature, hub)

		var hooks generic.Webhooks
		if hooks.Verify(header, body, []byte("a secret that nobody knows")) == nil {
			t.Error("a guessed signature is valid")
		}

		job, ok, err := hooks.ParseJob(header, body)
		if ok != (err == nil) {
			t.Fatalf("%t and %v", ok, err)
		}

		if !ok {
			return
		}

		if scope, err := hooks.ParseScope(header, body); err != nil || scope.Repository != job.Repository {
			t.Errorf("job of %q, scope %+v, %v", job.Repository, scope, err)
		}

		if len([]rune(job.ID)) > 128 || len([]rune(job.Name)) > 1024 || len(job.Labels) > 100 || len([]rune(job.URL)) > 2048 || job.ID == "" {
			t.Errorf("job %+v", job)
		}

		if _, err := json.Marshal(job); err != nil {
			t.Error(err)
		}
	})
}
