// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// documentedEvent is the example of GitLab's documentation, whose job has only been created
// (https://docs.gitlab.com/user/project/integrations/webhook_events/#job-events).
const documentedEvent = `{
  "object_kind": "build", "ref": "gitlab-script-trigger", "tag": false,
  "before_sha": "2293ada6b400935a1378653304eaf6221e0fdb8f", "sha": "2293ada6b400935a1378653304eaf6221e0fdb8f",
  "build_id": 1977, "build_name": "test", "build_stage": "test", "build_status": "created",
  "build_created_at": "2021-02-23T02:41:37.886Z", "build_created_at_iso": "2021-02-23T02:41:37Z",
  "build_started_at": null, "build_started_at_iso": null, "build_finished_at": null, "build_finished_at_iso": null,
  "build_duration": null, "build_queued_duration": 1095.588715, "build_allow_failure": false,
  "build_failure_reason": "script_failure", "retries_count": 2, "pipeline_id": 2366,
  "project_id": 380, "project_name": "gitlab-org/gitlab-test",
  "user": {"id": 3, "name": "User", "email": "user@gitlab.com"},
  "commit": {
    "id": 2366, "name": "Build pipeline", "sha": "2293ada6b400935a1378653304eaf6221e0fdb8f", "message": "test\n",
    "author_name": "User", "author_email": "user@gitlab.com", "status": "created",
    "duration": null, "started_at": null, "started_at_iso": null, "finished_at": null, "finished_at_iso": null
  },
  "repository": {
    "name": "gitlab_test", "description": "", "homepage": "http://192.168.64.1:3005/gitlab-org/gitlab-test",
    "git_ssh_url": "git@192.168.64.1:gitlab-org/gitlab-test.git",
    "git_http_url": "http://192.168.64.1:3005/gitlab-org/gitlab-test.git", "visibility_level": 20
  },
  "project": {
    "id": 380, "name": "Gitlab Test", "web_url": "http://192.168.64.1:3005/gitlab-org/gitlab-test",
    "git_http_url": "http://192.168.64.1:3005/gitlab-org/gitlab-test.git", "namespace": "Gitlab Org",
    "visibility_level": 20, "path_with_namespace": "gitlab-org/gitlab-test", "default_branch": "master"
  },
  "runner": {
    "active": true, "runner_type": "project_type", "is_shared": false, "id": 380987,
    "description": "shared-runners-manager-6.gitlab.com", "tags": ["linux", "docker"]
  },
  "environment": null,
  "source_pipeline": {
    "project": {"id": 41, "web_url": "https://gitlab.example.com/gitlab-org/upstream-project", "path_with_namespace": "gitlab-org/upstream-project"},
    "pipeline_id": 30, "job_id": 3401
  }
}`

// olderEvent is the event of servers before the field project was added, with their time format.
const olderEvent = `{
  "object_kind": "build", "build_id": 9459251, "build_name": "the_build_name", "build_stage": "build", "build_status": "running",
  "build_created_at": "2019-11-21 13:34:00 UTC", "build_started_at": "2019-11-21 13:34:18 UTC", "build_finished_at": null,
  "build_duration": 0.214173244, "project_id": 19654, "project_name": "path / to / the / project", "commit": {"id": 1305524},
  "repository": {
    "name": "project", "homepage": "https://gitlab.example.com/path/to/the/project",
    "git_http_url": "https://gitlab.example.com/path/to/the/project.git"
  },
  "runner": {"id": 5, "description": "build-1-0a1b2c3d (hf-op-1a2b3c4d5e)"}
}`

func newJobHook() http.Header {
	return http.Header{gitlab.HeaderEvent: {"Job Hook"}}
}

// newEvent returns the documented event with a status and the changes of edit.
func newEvent(t testing.TB, status string, edit func(map[string]any)) []byte {
	t.Helper()

	var out map[string]any
	if err := json.Unmarshal([]byte(documentedEvent), &out); err != nil {
		t.Fatal(err)
	}

	out["build_status"] = status
	if edit != nil {
		edit(out)
	}

	text, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}

	return text
}

func parseTime(t *testing.T, text string) *metav1.Time {
	t.Helper()

	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}

	return &metav1.Time{Time: at}
}

func TestParse(t *testing.T) {
	t.Parallel()

	base := workload.Job{
		Platform: v1alpha1.WorkloadGitLabCI, ID: "1977", Name: "test", Repository: "gitlab-org/gitlab-test", Organization: "gitlab-org",
		RunID: "2366", Workflow: "Build pipeline", URL: "http://192.168.64.1:3005/gitlab-org/gitlab-test/-/jobs/1977",
		LabelsUnknown: true, QueuedAt: parseTime(t, "2021-02-23T02:41:37.886Z"),
	}
	with := func(edit func(*workload.Job)) workload.Job {
		out := base
		edit(&out)

		return out
	}
	started := func(e map[string]any) {
		e["build_started_at"], e["build_queued_duration"] = "2021-02-23 02:50:00 UTC", 90.5
	}

	cases := map[string]struct {
		body []byte
		want workload.Job
	}{
		"pending": {newEvent(t, "pending", nil), with(func(j *workload.Job) { j.State = v1alpha1.JobQueued })},
		"waiting for a resource": {
			newEvent(t, "waiting_for_resource", nil), with(func(j *workload.Job) { j.State = v1alpha1.JobWaiting }),
		},
		"preparing": {newEvent(t, "preparing", nil), with(func(j *workload.Job) { j.State = v1alpha1.JobWaiting })},
		"running": {
			newEvent(t, "running", started), with(func(j *workload.Job) {
				j.State, j.RunnerName = v1alpha1.JobRunning, "shared-runners-manager-6.gitlab.com"
				j.StartedAt, j.QueuedAt = parseTime(t, "2021-02-23T02:50:00Z"), parseTime(t, "2021-02-23T02:48:29Z")
			}),
		},
		"failed": {
			newEvent(t, "failed", func(e map[string]any) { started(e); e["build_finished_at"] = "2021-02-23T03:00:00Z" }),
			with(func(j *workload.Job) {
				j.State, j.RunnerName, j.Conclusion = v1alpha1.JobCompleted, "shared-runners-manager-6.gitlab.com", "failed"
				j.StartedAt, j.QueuedAt = parseTime(t, "2021-02-23T02:50:00Z"), parseTime(t, "2021-02-23T02:48:29Z")
				j.CompletedAt = parseTime(t, "2021-02-23T03:00:00Z")
			}),
		},
		"canceled before it had a runner, no pipeline name": {
			newEvent(t, "canceled", func(e map[string]any) { e["runner"], e["commit"] = nil, map[string]any{"id": 1, "name": nil} }),
			with(func(j *workload.Job) { j.State, j.Conclusion, j.Workflow = v1alpha1.JobCompleted, "canceled", "test" }),
		},
		"a job that is being cancelled counts as completed": {
			newEvent(t, "canceling", func(e map[string]any) { e["runner"] = nil }),
			with(func(j *workload.Job) { j.State, j.Conclusion = v1alpha1.JobCompleted, "canceled" }),
		},
		"an older server, a runner of ours": {
			[]byte(olderEvent), workload.Job{
				Platform: v1alpha1.WorkloadGitLabCI, ID: "9459251", Name: "the_build_name", Repository: "path/to/the/project",
				Organization: "path/to/the", Workflow: "build", URL: "https://gitlab.example.com/path/to/the/project/-/jobs/9459251",
				LabelsUnknown: true, State: v1alpha1.JobRunning, RunnerName: "build-1-0a1b2c3d",
				QueuedAt: parseTime(t, "2019-11-21T13:34:00Z"), StartedAt: parseTime(t, "2019-11-21T13:34:18Z"),
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			job, ok, err := gitlab.Webhooks{}.ParseJob(newJobHook(), tc.body)
			if err != nil || !ok {
				t.Fatalf("Parse = %t, %v", ok, err)
			}

			if diff := cmp.Diff(tc.want, job); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Jobs that no runner may take at present would stay in the ledger forever, and a skipped job that
// is recorded as completed could never be queued again.
func TestParseIgnoresUnrunnableJobs(t *testing.T) {
	t.Parallel()

	for _, status := range []string{"created", "manual", "scheduled", "skipped"} {
		if job, ok, err := (gitlab.Webhooks{}).ParseJob(newJobHook(), newEvent(t, status, nil)); ok || err != nil {
			t.Errorf("%s: %+v, %v", status, job, err)
		}
	}

	// The documented example itself is parsed.
	if _, ok, err := (gitlab.Webhooks{}).ParseJob(newJobHook(), []byte(documentedEvent)); ok || err != nil {
		t.Errorf("the documented example: %t, %v", ok, err)
	}
}

func TestParseOddEvents(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("é", 5000)
	set := func(key string, value any) func(map[string]any) {
		return func(e map[string]any) { e[key] = value }
	}
	inProject := func(key string, value any) func(map[string]any) {
		return func(e map[string]any) {
			project, _ := e["project"].(map[string]any)
			project[key] = value
		}
	}
	tests := map[string]struct {
		header http.Header
		body   []byte
		ok     bool
		err    error
		check  func(workload.Job) bool
	}{
		"another event":    {header: http.Header{gitlab.HeaderEvent: {"Pipeline Hook"}}, body: []byte(`{"object_kind":"pipeline"}`)},
		"no event header":  {header: http.Header{}, body: newEvent(t, "pending", nil), err: gitlab.ErrNoEvent},
		"not JSON":         {header: newJobHook(), body: []byte("payload=%7B"), err: gitlab.ErrPayload},
		"cut off":          {header: newJobHook(), body: newEvent(t, "pending", nil)[:40], err: gitlab.ErrPayload},
		"null":             {header: newJobHook(), body: []byte("null"), err: gitlab.ErrPayload},
		"another kind":     {header: newJobHook(), body: newEvent(t, "pending", set("object_kind", "pipeline")), err: gitlab.ErrPayload},
		"no id":            {header: newJobHook(), body: newEvent(t, "pending", set("build_id", 0)), err: gitlab.ErrPayload},
		"an id of letters": {header: newJobHook(), body: newEvent(t, "pending", set("build_id", "x")), err: gitlab.ErrPayload},
		"unknown status":   {header: newJobHook(), body: newEvent(t, "dreaming", nil), err: gitlab.ErrPayload},
		"a project's name": {header: newJobHook(), body: newEvent(t, "pending", inProject("path_with_namespace", "x")), err: gitlab.ErrPayload},
		"an absolute path": {header: newJobHook(), body: newEvent(t, "pending", inProject("path_with_namespace", "/etc/x")), err: gitlab.ErrPayload},
		"a path too long":  {header: newJobHook(), body: newEvent(t, "pending", inProject("path_with_namespace", "a/"+long)), err: gitlab.ErrPayload},
		"no project at all": {
			header: newJobHook(), err: gitlab.ErrPayload,
			body: newEvent(t, "pending", func(e map[string]any) { delete(e, "project"); delete(e, "repository") }),
		},
		"invalid times are ignored": {
			header: newJobHook(), ok: true,
			body: newEvent(t, "running", func(e map[string]any) {
				e["build_created_at"], e["build_started_at"], e["build_queued_duration"] = 17, "soon", "x"
			}),
			check: func(j workload.Job) bool { return j.QueuedAt == nil && j.StartedAt == nil },
		},
		"an infinite queue time is ignored": {
			header: newJobHook(), ok: true,
			body: newEvent(t, "running", func(e map[string]any) {
				e["build_started_at"], e["build_queued_duration"] = "2021-02-23T03:00:00Z", 1e300
			}),
			check: func(j workload.Job) bool { return j.QueuedAt.Equal(parseTime(t, "2021-02-23T02:41:37.886Z")) },
		},
		"long texts are cut between characters, long links are dropped": {
			header: newJobHook(), ok: true,
			body: newEvent(t, "running", func(e map[string]any) {
				e["build_name"], e["commit"], e["runner"] = long, map[string]any{"name": long}, map[string]any{"description": long}
				inProject("web_url", "https://gitlab.example.com/"+long)(e)
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

			job, ok, err := gitlab.Webhooks{}.ParseJob(test.header, test.body)
			if ok != test.ok || !errors.Is(err, test.err) || (err != nil) != (test.err != nil) {
				t.Fatalf("Parse = %t, %v; want %t, %v", ok, err, test.ok, test.err)
			}

			if test.check != nil && !test.check(job) {
				t.Errorf("job = %+v", job)
			}
		})
	}
}

func TestScope(t *testing.T) {
	t.Parallel()

	for body, want := range map[string]workload.Scope{
		documentedEvent: {Server: "192.168.64.1:3005", Repository: "gitlab-org/gitlab-test", Organization: "gitlab-org"},
		olderEvent:      {Server: "gitlab.example.com", Repository: "path/to/the/project", Organization: "path/to/the"},
		`{"repository":{"git_http_url":"https://gitlab.example.com/a/b.git"}}`: {
			Server: "gitlab.example.com", Repository: "a/b", Organization: "a",
		},
		`{"object_kind":"pipeline","project":{"web_url":"https://gitlab.example.com/a/b","path_with_namespace":"a/b"}}`: {
			Server: "gitlab.example.com", Repository: "a/b", Organization: "a",
		},
		`{"event_name":"user_create"}`: {},
	} {
		got, err := gitlab.Webhooks{}.ParseScope(newJobHook(), []byte(body))
		if err != nil || got != want {
			t.Errorf("Scope(%.60s) = %+v, %v; want %+v", body, got, err, want)
		}
	}

	if _, err := (gitlab.Webhooks{}).ParseScope(http.Header{}, []byte("{}")); !errors.Is(err, gitlab.ErrNoEvent) {
		t.Errorf("no event header: %v", err)
	}

	if _, err := (gitlab.Webhooks{}).ParseScope(newJobHook(), []byte("<xml/>")); !errors.Is(err, gitlab.ErrPayload) {
		t.Errorf("not JSON: %v", err)
	}
}

func TestVerifySecretToken(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		given, secret string
		want          error
	}{
		"right":                 {"my secret", "my secret", nil},
		"another":               {"my secreT", "my secret", workload.ErrSignature},
		"a beginning":           {"my", "my secret", workload.ErrSignature},
		"none":                  {"", "my secret", gitlab.ErrNoToken},
		"no secret":             {"", "", gitlab.ErrNoSecret},
		"no secret, some token": {"x", "", gitlab.ErrNoSecret},
	} {
		header := http.Header{}
		if test.given != "" {
			header.Set(gitlab.HeaderToken, test.given)
		}

		// Every delivery of newer servers contains this header. It is not a signature.
		header.Set(gitlab.HeaderID, "1")
		header.Set(gitlab.HeaderTimestamp, "1")

		if err := (gitlab.Webhooks{}).Verify(header, []byte("{}"), []byte(test.secret)); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
			t.Errorf("%s: Verify = %v, want %v", name, err, test.want)
		}
	}
}

func TestVerifySigningToken(t *testing.T) {
	t.Parallel()

	// The test values of the Standard Webhooks specification.
	const (
		secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
		id     = "msg_p5jXN8AQM9LWM0D4loKWxJek"
		stamp  = 1614265330
		body   = `{"test": 2432232314}`
		good   = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	)

	other := "v1," + base64.StdEncoding.EncodeToString(gitlab.Sign([]byte("x"), id, strconv.Itoa(stamp), []byte(body)))

	tests := map[string]struct {
		id, stamp, signature, secret, body string
		later                              time.Duration
		want                               error
	}{
		"right":                           {},
		"the second of two":               {signature: other + " " + good},
		"the first, then another version": {signature: good + " v2,x"},
		"four minutes old":                {later: 4 * time.Minute},
		"five minutes early":              {later: -5 * time.Minute},
		"too old":                         {later: 6 * time.Minute, want: gitlab.ErrTimestamp},
		"too early":                       {later: -6 * time.Minute, want: gitlab.ErrTimestamp},
		"another body":                    {body: `{"test": 2432232315}`, want: workload.ErrSignature},
		"another id":                      {id: "msg_x", want: workload.ErrSignature},
		"another timestamp":               {stamp: "1614265331", want: workload.ErrSignature},
		"another key":                     {signature: other, want: workload.ErrSignature},
		"another version":                 {signature: "v2" + good[2:], want: workload.ErrSignature},
		"no version":                      {signature: good[3:], want: workload.ErrSignature},
		"cut off":                         {signature: good[:20], want: workload.ErrSignature},
		"empty":                           {signature: "v1,", want: workload.ErrSignature},
		"no signature":                    {signature: "-", want: gitlab.ErrNoSignature},
		"no id":                           {id: "-", want: gitlab.ErrNoSignature},
		"no timestamp":                    {stamp: "-", want: gitlab.ErrNoSignature},
		"a signing token that is none":    {secret: "whsec_not base64", want: gitlab.ErrSecret},
		"an empty signing token":          {secret: "whsec_", want: gitlab.ErrSecret},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			clk := clocktesting.NewFakePassiveClock(time.Unix(stamp, 0).Add(test.later))
			header := http.Header{}

			for key, values := range map[string][2]string{
				gitlab.HeaderID:        {test.id, id},
				gitlab.HeaderTimestamp: {test.stamp, strconv.Itoa(stamp)},
				gitlab.HeaderSignature: {test.signature, good},
			} {
				switch value := values[0]; value {
				case "-":
				case "":
					header.Set(key, values[1])
				default:
					header.Set(key, value)
				}
			}

			text, key := body, secret
			if test.body != "" {
				text = test.body
			}

			if test.secret != "" {
				key = test.secret
			}

			err := gitlab.Webhooks{Clock: clk}.Verify(header, []byte(text), []byte(key))
			if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("Verify = %v, want %v", err, test.want)
			}
		})
	}

	// A timestamp with a valid signature that is not a number.
	header := http.Header{}
	key := []byte("0123456789")
	header.Set(gitlab.HeaderID, "1")
	header.Set(gitlab.HeaderTimestamp, "now")
	header.Set(gitlab.HeaderSignature, "v1,"+base64.StdEncoding.EncodeToString(gitlab.Sign(key, "1", "now", nil)))

	if err := (gitlab.Webhooks{}).Verify(header, nil, []byte("whsec_"+base64.StdEncoding.EncodeToString(key))); !errors.Is(err, gitlab.ErrTimestamp) {
		t.Errorf("no number: %v", err)
	}
}

// Every parsed job fits into a RunnerJob, and no webhook is accepted without the secret.
func FuzzWebhook(f *testing.F) {
	f.Add("Job Hook", "1", "1614265330", "v1,x", "x", []byte(documentedEvent))
	f.Add("Job Hook", "", "", "", "", []byte(olderEvent))
	f.Add("Job Hook", "a", "9223372036854775807", "v1, v2,x v1,", "", newEvent(f, "pending", nil))
	f.Add("Job Hook", "a", "-9223372036854775808", "", "", newEvent(f, "running", nil))
	f.Add("Push Hook", "", "", "", "", []byte("{}"))
	f.Fuzz(func(t *testing.T, name, id, stamp, signature, token string, body []byte) {
		before := bytes.Clone(body)
		header := http.Header{
			gitlab.HeaderEvent: {name}, gitlab.HeaderID: {id}, gitlab.HeaderTimestamp: {stamp},
			gitlab.HeaderSignature: {signature}, gitlab.HeaderToken: {token},
		}
		scope, scopeErr := gitlab.Webhooks{}.ParseScope(header, body)

		for _, secret := range []string{"a secret that nobody guesses", "whsec_YSBzZWNyZXQgdGhhdCBub2JvZHkgZ3Vlc3Nlcw==", "whsec_", ""} {
			if err := (gitlab.Webhooks{}).Verify(header, body, []byte(secret)); err == nil {
				t.Fatalf("accepted with %q", secret)
			}
		}

		job, ok, err := gitlab.Webhooks{}.ParseJob(header, body)

		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}

		if ok && err != nil {
			t.Fatal("got a job and an error")
		}

		if ok {
			if problem := findInvalidField(job); problem != "" {
				t.Fatalf("%s: %+v", problem, job)
			}

			if scopeErr != nil || scope.Repository != job.Repository {
				t.Fatalf("scope %+v, %v of job %+v", scope, scopeErr, job)
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
