// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
)

func TestJobMatching(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		runner map[string]any
		labels []string
		takes  bool
	}{
		"all tags":               {map[string]any{"tag_list": []string{"a", "b"}, "run_untagged": false}, []string{"a"}, true},
		"a tag is missing":       {map[string]any{"tag_list": []string{"a"}}, []string{"a", "b"}, false},
		"case counts":            {map[string]any{"tag_list": []string{"A"}}, []string{"a"}, false},
		"untagged":               {map[string]any{"tag_list": []string{"a"}, "run_untagged": true}, nil, true},
		"untagged, not assigned": {map[string]any{"tag_list": []string{"a"}, "run_untagged": false}, nil, false},
		"paused":                 {map[string]any{"paused": true}, nil, false},
		"a group above":          {map[string]any{"runner_type": "group_type", "project_id": nil, "group_id": 35}, nil, true},
		"another group":          {map[string]any{"runner_type": "group_type", "project_id": nil, "group_id": 37}, nil, false},
		"another project":        {map[string]any{"project_id": 381}, nil, false},
		"the instance":           {map[string]any{"runner_type": "instance_type", "project_id": nil}, nil, true},
	} {
		s := gitlabtest.New(t, gitlab.Options{Projects: []gitlab.Project{{Path: gitlabtest.Project}, {Path: "gitlab-orgs/app"}}})
		_, token := createRunner(t, s, test.runner)
		s.Queue(control.JobSpec{Labels: test.labels})
		if a := requestJob(t, s, token); (a.code == http.StatusCreated) != test.takes || !test.takes && a.code != http.StatusNoContent {
			t.Errorf("%s: %d %s, assigned %t", name, a.code, a.text, test.takes)
		}
	}
}

func TestRunnerCalls(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	id, token := createRunner(t, s, nil)
	verify := func(token string) response {
		return sendWithHeader(t, s, "POST", "/runners/verify", http.Header{}, map[string]any{"token": token})
	}
	if a := verify(token); a.code != 200 || a.body["id"] != id {
		t.Errorf("verify: %d %s", a.code, a.text)
	}
	if a := verify("glrt-x"); a.code != 403 {
		t.Errorf("verify a wrong token: %d", a.code)
	}
	if a := requestJob(t, s, "glrt-x"); a.code != 403 {
		t.Errorf("request with a wrong token: %d", a.code)
	}
	queued := s.Queue(control.JobSpec{Command: "make"})[0]
	a := requestJob(t, s, token)
	var work struct {
		ID    int64
		Token string
		Steps []struct{ Script []string }
	}
	requireNoError(t, json.Unmarshal([]byte(a.text), &work))
	if a.code != 201 || work.ID != queued.ID || work.Token == "" || work.Steps[0].Script[0] != "make" {
		t.Fatalf("request: %d %s", a.code, a.text)
	}
	path := fmt.Sprintf("/jobs/%d", work.ID)
	patch := func(job, start, end, text string) response {
		return sendWithHeader(t, s, "PATCH", path+"/trace?debug_trace=false",
			http.Header{"Job-Token": {job}, "Content-Range": {start + "-" + end}, "Content-Type": {"text/plain"}}, text)
	}
	if a := patch(work.Token, "0", "4", "hello"); a.code != 202 || a.header.Get("Range") != "0-5" || a.header.Get("Job-Status") != "running" {
		t.Errorf("append: %d %v", a.code, a.header)
	}
	if a := patch(work.Token, "0", "4", "hello"); a.code != 416 || a.header.Get("Range") != "0-5" {
		t.Errorf("append again: %d %v", a.code, a.header)
	}
	if a := patch("x", "5", "5", "!"); a.code != 403 {
		t.Errorf("append with a wrong token: %d", a.code)
	}
	put := func(job, state string) response {
		return sendWithHeader(t, s, "PUT", path, http.Header{}, map[string]any{"token": job, "state": state, "exit_code": 3, "failure_reason": "script_failure"})
	}
	if a := put("x", "success"); a.code != 403 {
		t.Errorf("report with a wrong token: %d", a.code)
	}
	if a := put(work.Token, "failed"); a.code != 200 || a.header.Get("Job-Status") != "failed" {
		t.Errorf("report: %d %v", a.code, a.header)
	}
	if a := put(work.Token, "success"); a.code != 403 || a.header.Get("Job-Status") != "failed" {
		t.Errorf("report twice: %d %v", a.code, a.header)
	}
	if got := s.State().Jobs[0]; got.Conclusion != "failure" || s.Trace(work.ID) != "hello" {
		t.Errorf("job: %+v, log %q", got, s.Trace(work.ID))
	}
	job := sendRequest(t, s, "GET", fmt.Sprintf("/projects/380/jobs/%d", work.ID), gitlabtest.Token, nil)
	if job.body["failure_reason"] != "script_failure" || job.body["status"] != "failed" {
		t.Errorf("the API returns %s", job.text)
	}
	if a := patch(work.Token, "x", "y", ""); a.code != 403 {
		t.Errorf("append to a finished job: %d", a.code)
	}
}

// A caller must not delete a runner that runs a job, and a runner with a job must not request another job.
func TestRunnerViolations(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	id, token := createRunner(t, s, nil)
	s.Queue(control.JobSpec{Count: 2})
	requestJob(t, s, token)
	requestJob(t, s, token)
	s.ExpectViolations(t, 1)
	if a := sendRequest(t, s, "DELETE", fmt.Sprintf("/runners/%d", int(id)), gitlabtest.Token, nil); a.code != http.StatusNoContent {
		t.Errorf("GitLab removes a busy runner: %d", a.code)
	}
	s.ExpectViolations(t, 1)
}

func TestJobRequestIsHeld(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{PollTimeout: time.Hour})
	_, token := createRunner(t, s, nil)
	last := requestJob(t, s, token).header.Get("X-Gitlab-Last-Update")
	got := make(chan response, 1)
	go func() {
		got <- sendWithHeader(t, s, "POST", "/jobs/request", http.Header{}, map[string]any{"token": token, "last_update": last})
	}()
	s.WaitUntil("the request is received", func(st control.State) bool { return st.Requests["POST /jobs/request"] == 2 })
	select {
	case a := <-got:
		t.Fatalf("the request was not held: %d", a.code)
	default:
	}
	s.Queue(control.JobSpec{})
	if a := <-got; a.code != http.StatusCreated {
		t.Errorf("status %d %s", a.code, a.text)
	}
}

func TestHeldJobRequestTimesOut(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{PollTimeout: 10 * time.Millisecond})
	_, token := createRunner(t, s, nil)
	last := requestJob(t, s, token).header.Get("X-Gitlab-Last-Update")
	a := sendWithHeader(t, s, "POST", "/jobs/request", http.Header{}, map[string]any{"token": token, "last_update": last})
	if a.code != http.StatusNoContent || a.header.Get("X-Gitlab-Last-Update") != last {
		t.Errorf("status %d %v", a.code, a.header)
	}
}

func TestDeadlines(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts   gitlab.Options
		starts bool
		after  time.Duration
		why    string
	}{
		"waits for too long": {gitlab.Options{}, false, 24 * time.Hour, "stuck_or_timeout_failure"},
		"runner is lost":     {gitlab.Options{LostTimeout: time.Minute}, true, time.Minute, "stuck_or_timeout_failure"},
		"runs for too long":  {gitlab.Options{JobTimeout: time.Minute}, true, time.Minute, "job_execution_timeout"},
	} {
		clk := newFakeClock()
		test.opts.Clock = clk
		s := gitlabtest.New(t, test.opts)
		_, token := createRunner(t, s, nil)
		job := s.Queue(control.JobSpec{})[0]
		if test.starts {
			requestJob(t, s, token)
		}
		clk.Step(test.after - time.Second)
		if got := s.State().Jobs[0]; got.Status == "completed" {
			t.Errorf("%s: over too soon: %+v", name, got)
		}
		clk.Step(2 * time.Second)
		if got := s.State(); got.Jobs[0].Conclusion != "failure" || len(got.Runners) != 1 || got.Runners[0].Busy {
			t.Errorf("%s: %+v", name, got)
		}
		if a := sendRequest(t, s, "GET", fmt.Sprintf("/projects/380/jobs/%d", job.ID), gitlabtest.Token, nil); a.body["failure_reason"] != test.why {
			t.Errorf("%s: %s", name, a.text)
		}
	}
}

func TestStandInRunner(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		command, conclusion string
		lines               []string
	}{
		"a job that succeeds": {"echo in $CI_PROJECT_PATH; test \"$GITLAB_CI\" = true", "success", []string{
			"Starting runner for ", "Checking for jobs... received", "Job succeeded", "This runner has processed its build limit, so now exiting",
		}},
		"a job that fails": {"echo no; exit 3", "failure", []string{
			"WARNING: Job failed: run script: exit status 3", "ERROR: Failed to process build", "so now exiting",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := gitlabtest.New(t, gitlab.Options{})
			_, token := createRunner(t, s, nil)
			job := s.Queue(control.JobSpec{Command: test.command})[0]
			r := s.StartRunner(t, token)
			if code := r.Wait(); code != 0 {
				t.Fatalf("exit code %d, output:\n%s", code, r.Output())
			}
			for _, line := range test.lines {
				if !strings.Contains(r.Output(), line) {
					t.Errorf("output lacks %q:\n%s", line, r.Output())
				}
			}
			if strings.Contains(r.Output(), token) {
				t.Error("the output contains the token")
			}
			if got := s.State().Jobs[0]; got.Conclusion != test.conclusion || got.RunnerName != "vm-1" {
				t.Errorf("job: %+v", got)
			}
			if log := s.Trace(job.ID); !strings.Contains(log, "Running with gitlab-runner") || strings.Contains(log, token) {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}

func TestStandInRunnerEnds(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{PollTimeout: 20 * time.Millisecond})
	_, token := createRunner(t, s, nil)
	r := s.StartRunner(t, token, "--wait-timeout", "1")
	if code := r.Wait(); code != 0 || !strings.Contains(r.Output(), "This runner has not received a job in 1 seconds, so now exiting") {
		t.Errorf("without a job: %d\n%s", code, r.Output())
	}
	r = s.StartRunner(t, "glrt-wrong", "--wait-timeout", "1")
	if code := r.Wait(); code != 0 || !strings.Contains(r.Output(), "ERROR: Checking for jobs... forbidden") || !strings.Contains(r.Output(), "Runner is not healthy!") {
		t.Errorf("with a wrong token: %d\n%s", code, r.Output())
	}
	for name, args := range map[string][]string{
		"Missing URL": {"--url", ""}, "Missing Token": {"--token", ""}, "Missing Executor": {"--executor", ""}, "Unknown executor: docker": {"--executor", "docker"},
		"unexpected argument": {"x"}, "parse options": {"--nope"},
	} {
		r := s.StartRunner(t, token, args...)
		if code := r.Wait(); code != 1 || !strings.Contains(r.Output(), "FATAL: "+name) {
			t.Errorf("%s: %d\n%s", name, code, r.Output())
		}
	}
}

func TestCancelledAndAborted(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	_, token := createRunner(t, s, nil)
	job := s.Queue(control.JobSpec{Duration: time.Hour})[0]
	r := s.StartRunner(t, token)
	s.WaitUntil("the job runs", hasRunningJobs(1))
	requireNoError(t, s.Cancel(job.ID))
	if code := r.Wait(); code != 0 || !strings.Contains(r.Output(), "Job failed: canceled") {
		t.Errorf("cancelled: %d\n%s", code, r.Output())
	}
	second := s.Queue(control.JobSpec{Duration: time.Hour})[0]
	r = s.StartRunner(t, token)
	// At GitLab, a job is running before its runner has received the response.
	s.WaitUntil("the runner has the job", func(control.State) bool {
		return strings.Contains(s.Trace(second.ID), "Running with gitlab-runner")
	})
	r.Stop()
	if code := r.Wait(); code != 0 || !strings.Contains(r.Output(), "Requested exit") {
		t.Errorf("stopped: %d\n%s", code, r.Output())
	}
	state := s.WaitUntil("both are over", hasCompletedJobs(2))
	if state.Jobs[0].Conclusion != "cancelled" || state.Jobs[1].Conclusion != "failure" {
		t.Errorf("jobs: %+v", state.Jobs)
	}
}

func TestQueueApproveCancel(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	job := s.Queue(control.JobSpec{Environment: "production", Name: "deploy", Count: 2})[0]
	if job.Status != "waiting" || job.Name != "deploy 1/2" {
		t.Errorf("a manual job: %+v", job)
	}
	requireNoError(t, s.Approve(job.ID))
	requireNoError(t, s.Cancel(job.ID+1))
	if err := s.Approve(job.ID); err == nil {
		t.Error("played twice")
	}
	state := s.State()
	if state.Jobs[0].Status != "queued" || state.Jobs[1].Conclusion != "cancelled" {
		t.Errorf("jobs: %+v", state.Jobs)
	}
	for _, bad := range []control.JobSpec{{Repo: "no/where"}, {Labels: []string{""}}, {Count: -1}, {Count: 1e6}, {Duration: -1}} {
		if bad.Repo == "" {
			bad.Repo = gitlabtest.Project
		}
		if _, err := s.Server.Queue(bad); err == nil {
			t.Errorf("%+v was queued", bad)
		}
	}
	if err := errors.Join(s.Cancel(1), s.Cancel(job.ID+1)); err == nil {
		t.Error("cancelled a finished job")
	}
}

// If the response to a part of the log is lost, the header Range has the size of the log
// at the server. In the end, the log is complete.
func TestLostResponseToLog(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	_, token := createRunner(t, s, nil)
	end, err := url.Parse(s.URL)
	requireNoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(end)
	lost := make(chan struct{}, 1)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPatch {
			proxy.ServeHTTP(w, r)
			return
		}
		select {
		case lost <- struct{}{}:
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(front.Close)
	job := s.Queue(control.JobSpec{Command: "echo well; sleep 0.1; echo done"})[0]
	runner := s.StartRunner(t, token, "--wait-timeout", "20", "--url", front.URL)
	if code := runner.Wait(); code != 0 || len(lost) != 1 {
		t.Fatalf("exit code %d, %d responses lost, output:\n%s", code, len(lost), runner.Output())
	}
	if log := s.Trace(job.ID); !strings.HasSuffix(log, "well\ndone\nJob succeeded\n") || strings.Count(log, "Running with") != 1 {
		t.Errorf("the log is %q; output:\n%s", log, runner.Output())
	}
}
