// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

// GitHub ignores an unknown field, and it is not a violation.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	body := newJITBody("vm-1", "x")
	body["colour"] = "red"
	if a := sendRequest(t, s, "POST", repoRunnerAccess+"/generate-jitconfig", auth, body); a.code != http.StatusCreated {
		t.Errorf("status %d %s", a.code, a.text)
	}
}

// TestRunnerCalls sends every runner call at each level with a real client, and the calls of one
// level under the base path of Enterprise Server.
func TestRunnerCalls(t *testing.T) {
	req := &gh.GenerateJITConfigRequest{Name: "vm-1", RunnerGroupID: 1, Labels: []string{"self-hosted", "gpu"}}
	t.Run("repository", func(t *testing.T) {
		s := githubtest.New(t, github.Options{})
		a := newClient(t, s.URL, githubtest.PAT).Actions
		token, _, err := a.CreateRegistrationToken(t.Context(), "octo-org", "octo-repo")
		checkLifetime(t, token.GetExpiresAt(), err)
		remove, _, err := a.CreateRemoveToken(t.Context(), "octo-org", "octo-repo")
		checkLifetime(t, remove.GetExpiresAt(), err)
		made, _, err := a.GenerateRepoJITConfig(t.Context(), "octo-org", "octo-repo", req)
		requireNoError(t, err)
		list, _, err := a.ListRunners(t.Context(), "octo-org", "octo-repo", &gh.ListRunnersOptions{Name: new("vm-1")})
		requireNoError(t, err)
		got, _, err := a.GetRunner(t.Context(), "octo-org", "octo-repo", made.GetRunner().GetID())
		requireNoError(t, err)
		checkRunner(t, list, got)
		_, _, err = a.ListRunnerApplicationDownloads(t.Context(), "octo-org", "octo-repo")
		requireNoError(t, err)
		_, err = a.RemoveRunner(t.Context(), "octo-org", "octo-repo", got.GetID())
		requireNoError(t, err)
		if _, resp, _ := a.GetRunner(t.Context(), "octo-org", "octo-repo", got.GetID()); resp.StatusCode != http.StatusNotFound {
			t.Errorf("the status of a deleted runner is %d", resp.StatusCode)
		}
	})
	t.Run("organisation", func(t *testing.T) {
		s := githubtest.New(t, github.Options{})
		a := newClient(t, s.URL+"/api/v3", githubtest.PAT).Actions
		token, _, err := a.CreateOrganizationRegistrationToken(t.Context(), "octo-org")
		checkLifetime(t, token.GetExpiresAt(), err)
		remove, _, err := a.CreateOrganizationRemoveToken(t.Context(), "octo-org")
		checkLifetime(t, remove.GetExpiresAt(), err)
		made, _, err := a.GenerateOrgJITConfig(t.Context(), "octo-org", req)
		requireNoError(t, err)
		list, _, err := a.ListOrganizationRunners(t.Context(), "octo-org", nil)
		requireNoError(t, err)
		got, _, err := a.GetOrganizationRunner(t.Context(), "octo-org", made.GetRunner().GetID())
		requireNoError(t, err)
		checkRunner(t, list, got)
		_, _, err = a.ListOrganizationRunnerApplicationDownloads(t.Context(), "octo-org")
		requireNoError(t, err)
		_, err = a.RemoveOrganizationRunner(t.Context(), "octo-org", got.GetID())
		requireNoError(t, err)
	})
	t.Run("enterprise", func(t *testing.T) {
		s := githubtest.New(t, github.Options{Enterprise: "octo"})
		e := newClient(t, s.URL, githubtest.PAT).Enterprise
		token, _, err := e.CreateRegistrationToken(t.Context(), "octo")
		checkLifetime(t, token.GetExpiresAt(), err)
		made, _, err := e.GenerateEnterpriseJITConfig(t.Context(), "octo", req)
		requireNoError(t, err)
		list, _, err := e.ListRunners(t.Context(), "octo", nil)
		requireNoError(t, err)
		got, _, err := e.GetRunner(t.Context(), "octo", made.GetRunner().GetID())
		requireNoError(t, err)
		checkRunner(t, list, got)
		_, err = e.RemoveRunner(t.Context(), "octo", got.GetID())
		requireNoError(t, err)
		if a := sendRequest(t, s, "POST", "/enterprises/octo/actions/runners/remove-token", auth, nil); a.code != http.StatusCreated {
			t.Errorf("remove-token: %d %s", a.code, a.text)
		}
		if a := sendRequest(t, s, "GET", "/enterprises/octo/actions/runners/downloads", auth, nil); a.code != http.StatusOK {
			t.Errorf("downloads: %d %s", a.code, a.text)
		}
	})
}

func requireNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checkLifetime(t *testing.T, at gh.Timestamp, err error) {
	t.Helper()
	requireNoError(t, err)
	if life := time.Until(at.Time); life < 59*time.Minute || life > time.Hour {
		t.Errorf("token is valid for %v, want an hour", life)
	}
}

func checkRunner(t *testing.T, list *gh.Runners, got *gh.Runner) {
	t.Helper()
	if list.TotalCount != 1 || list.Runners[0].GetID() != got.GetID() {
		t.Errorf("list %+v, want only runner %d", list, got.GetID())
	}
	if got.GetStatus() != "offline" || got.GetBusy() || got.GetName() != "vm-1" || len(got.Labels) != 2 {
		t.Errorf("a fresh JIT runner is %+v", got)
	}
}

func TestRunnerGroups(t *testing.T) {
	s := githubtest.New(t, github.Options{Enterprise: "octo", Groups: []github.Group{
		{Owner: "octo-org", Name: "linux"},
		{Owner: "octo-org", Name: "other", Visibility: "selected", Selected: []string{"octo-org/elsewhere"}},
		{Owner: "enterprises/octo", Name: "big"},
	}})
	c := newClient(t, s.URL, githubtest.PAT)
	groups, _, err := c.Actions.ListOrganizationRunnerGroups(t.Context(), "octo-org", nil)
	requireNoError(t, err)
	if groups.TotalCount != 3 || groups.RunnerGroups[0].GetName() != "Default" || groups.RunnerGroups[0].GetID() != 1 {
		t.Errorf("groups: %+v", groups)
	}
	visible, _, err := c.Actions.ListOrganizationRunnerGroups(t.Context(), "octo-org",
		&gh.ListOrgRunnerGroupOptions{VisibleToRepository: "octo-repo"})
	requireNoError(t, err)
	if visible.TotalCount != 2 {
		t.Errorf("groups visible to octo-repo: %+v", visible.RunnerGroups)
	}
	linux := groups.RunnerGroups[1].GetID()
	_, _, err = c.Actions.GenerateOrgJITConfig(t.Context(), "octo-org",
		&gh.GenerateJITConfigRequest{Name: "a", RunnerGroupID: linux, Labels: []string{"x"}})
	requireNoError(t, err)
	got, _, err := c.Actions.GetOrganizationRunnerGroup(t.Context(), "octo-org", linux)
	requireNoError(t, err)
	input, _, err := c.Actions.ListRunnerGroupRunners(t.Context(), "octo-org", linux, nil)
	requireNoError(t, err)
	if got.GetName() != "linux" || input.TotalCount != 1 {
		t.Errorf("group %+v has %d runners", got, input.TotalCount)
	}
	of, _, err := c.Enterprise.ListRunnerGroups(t.Context(), "octo", nil)
	requireNoError(t, err)
	if len(of.RunnerGroups) != 2 {
		t.Errorf("enterprise groups: %+v", of)
	}
	_, _, err = c.Enterprise.GetEnterpriseRunnerGroup(t.Context(), "octo", of.RunnerGroups[1].GetID())
	requireNoError(t, err)
	_, _, err = c.Enterprise.ListRunnerGroupRunners(t.Context(), "octo", 1, nil)
	requireNoError(t, err)
}

func TestJobsAndRuns(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	c := newClient(t, s.URL, githubtest.PAT)
	jobs := s.Queue(control.JobSpec{Labels: []string{"gpu"}, Count: 300, Name: "test"})
	if len(jobs) != 300 || jobs[0].RunID != jobs[255].RunID || jobs[256].RunID == jobs[0].RunID {
		t.Errorf("300 jobs must make two runs of at most 256: %d, %d", jobs[255].RunID, jobs[256].RunID)
	}
	job, _, err := c.Actions.GetWorkflowJobByID(t.Context(), "octo-org", "octo-repo", jobs[0].ID)
	requireNoError(t, err)
	if job.GetStatus() != "queued" || job.GetRunID() != jobs[0].RunID || job.RunnerID != nil {
		t.Errorf("job: %+v", job)
	}
	for status, want := range map[string]int{"queued": 2, "in_progress": 0, "completed": 0} {
		runs, _, err := c.Actions.ListRepositoryWorkflowRuns(t.Context(), "octo-org", "octo-repo",
			&gh.ListWorkflowRunsOptions{Status: status})
		requireNoError(t, err)
		if runs.GetTotalCount() != want {
			t.Errorf("%s runs: %d, want %d", status, runs.GetTotalCount(), want)
		}
	}
	seen := map[int64]bool{}
	opts := &gh.ListWorkflowJobsOptions{ListOptions: gh.ListOptions{PerPage: 100}}
	for {
		list, resp, err := c.Actions.ListWorkflowJobs(t.Context(), "octo-org", "octo-repo", jobs[0].RunID, opts)
		requireNoError(t, err)
		for _, j := range list.Jobs {
			seen[j.GetID()] = true
		}
		if resp.NextPage == 0 {
			break
		}
		opts.Page = resp.NextPage
	}
	if len(seen) != 256 {
		t.Errorf("pages had %d jobs, want 256", len(seen))
	}
	run, _, err := c.Actions.GetWorkflowRunByID(t.Context(), "octo-org", "octo-repo", jobs[0].RunID)
	requireNoError(t, err)
	if run.GetStatus() != "queued" {
		t.Errorf("run: %+v", run)
	}
	for _, id := range []int64{jobs[0].ID, jobs[1].ID} {
		requireNoError(t, s.Cancel(id))
	}
	if err := s.Cancel(jobs[0].ID); err == nil {
		t.Error("a completed job was cancelled again")
	}
}

func TestPagination(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	for i := range 7 {
		createJITConfig(t, s, "vm-"+strconv.Itoa(i), "x")
	}
	a := sendRequest(t, s, "GET", repoRunnerAccess+"?per_page=3&page=2", auth, nil)
	link := a.header.Get("Link")
	for _, want := range []string{`page=3&per_page=3>; rel="next"`, `page=3&per_page=3>; rel="last"`, `page=1&per_page=3>; rel="first"`, `rel="prev"`, "<" + s.URL} {
		if !strings.Contains(link, want) {
			t.Errorf("Link lacks %q: %s", want, link)
		}
	}
	if a.body["total_count"] != float64(7) || len(a.body["runners"].([]any)) != 3 {
		t.Errorf("page 2: %s", a.text)
	}
	if past := sendRequest(t, s, "GET", repoRunnerAccess+"?per_page=3&page=9", auth, nil); len(past.body["runners"].([]any)) != 0 {
		t.Errorf("page 9: %s", past.text)
	}
}

// TestErrors tests that each error has GitHub's status and text.
func TestErrors(t *testing.T) {
	cases := map[string]struct {
		method, path, auth string
		body               any
		code               int
		message            string
		violations         int
	}{
		"no credentials":            {"GET", repoRunnerAccess, "", nil, 401, "Requires authentication", 0},
		"unknown token":             {"GET", repoRunnerAccess, "Bearer nope", nil, 401, "Bad credentials", 0},
		"token scheme":              {"GET", repoRunnerAccess, "token " + githubtest.PAT, nil, 200, "", 0},
		"basic scheme":              {"GET", repoRunnerAccess, "Basic " + githubtest.PAT, nil, 401, "Requires authentication", 0},
		"token that looks like JWT": {"GET", repoRunnerAccess, "Bearer a.b.c", nil, 401, "A JSON web token could not be decoded", 0},
		"unknown repository":        {"GET", "/repos/octo-org/nope/actions/runners", auth, nil, 404, "Not Found", 0},
		"unknown organisation":      {"GET", "/orgs/nope/actions/runners", auth, nil, 404, "Not Found", 0},
		"unknown enterprise":        {"GET", "/enterprises/nope/actions/runners", auth, nil, 404, "Not Found", 0},
		"names ignore case":         {"GET", "/repos/Octo-Org/OCTO-REPO/actions/runners", auth, nil, 200, "", 0},
		"unknown runner":            {"GET", repoRunnerAccess + "/4711", auth, nil, 404, "Not Found", 0},
		"delete unknown runner":     {"DELETE", repoRunnerAccess + "/4711", auth, nil, 404, "Not Found", 0},
		"unknown group":             {"POST", repoRunnerAccess + "/generate-jitconfig", auth, map[string]any{"name": "n", "runner_group_id": 9, "labels": []string{"x"}}, 404, "Not Found", 0},
		"name taken":                {"POST", repoRunnerAccess + "/generate-jitconfig", auth, newJITBody("Taken", "x"), 409, "Already exists - A runner with the name Taken already exists.", 0},
		"name empty":                {"POST", repoRunnerAccess + "/generate-jitconfig", auth, newJITBody("", "x"), 422, "\"name\" wasn't supplied", 0},
		"name too long":             {"POST", repoRunnerAccess + "/generate-jitconfig", auth, newJITBody(strings.Repeat("n", 65), "x"), 422, "longer than 64", 0},
		"no labels":                 {"POST", repoRunnerAccess + "/generate-jitconfig", auth, map[string]any{"name": "n", "runner_group_id": 1, "labels": []string{}}, 422, "Invalid request", 1},
		"101 labels":                {"POST", repoRunnerAccess + "/generate-jitconfig", auth, map[string]any{"name": "n", "runner_group_id": 1, "labels": make([]string, 101)}, 422, "Invalid request", 1},
		"group missing":             {"POST", repoRunnerAccess + "/generate-jitconfig", auth, map[string]any{"name": "n", "labels": []string{"x"}}, 422, "Invalid request", 1},
		"not JSON":                  {"POST", repoRunnerAccess + "/generate-jitconfig", auth, "{", 400, "Problems parsing JSON", 1},
		"runner id not a number":    {"GET", repoRunnerAccess + "/abc", auth, nil, 404, "Not Found", 1},
		"unknown query parameter":   {"GET", repoRunnerAccess + "?nick=x", auth, nil, 200, "", 1},
		"unknown path":              {"GET", "/repos/octo-org/octo-repo/pulls", auth, nil, 501, "Not simulated", 1},
		"unknown method":            {"PATCH", repoRunnerAccess, auth, nil, 501, "Not simulated", 1},
		"unknown job":               {"GET", "/repos/octo-org/octo-repo/actions/jobs/1", auth, nil, 404, "Not Found", 0},
		"unknown run":               {"GET", "/repos/octo-org/octo-repo/actions/runs/1/jobs", auth, nil, 404, "Not Found", 0},
		"unknown hook":              {"GET", "/orgs/octo-org/hooks/1/deliveries", auth, nil, 404, "Not Found", 0},
		"App call with a PAT":       {"GET", "/app/hook/deliveries", auth, nil, 401, "A JSON web token could not be decoded", 0},
	}
	s := githubtest.New(t, github.Options{})
	createJITConfig(t, s, "taken", "x")
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			a := sendRequest(t, s, tc.method, tc.path, tc.auth, tc.body)
			message, _ := a.body["message"].(string)
			if a.code != tc.code || !strings.Contains(message, tc.message) {
				t.Errorf("got %d %s, want %d %q", a.code, a.text, tc.code, tc.message)
			}
			s.ExpectViolations(t, tc.violations)
		})
	}
}

func TestBusyRunnerCannotBeDeleted(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	s.Queue(control.JobSpec{Labels: []string{"x"}, Duration: time.Hour})
	r := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", createJITConfig(t, s, "vm-1", "x"))
	state := s.WaitUntil("the job runs", hasRunningJobs(1))
	path := repoRunnerAccess + "/" + strconv.FormatInt(state.Runners[0].ID, 10)
	a := sendRequest(t, s, "DELETE", path, auth, nil)
	if a.code != 422 || !strings.Contains(a.text, `Bad request - Runner \"vm-1\" is still running a job`) {
		t.Errorf("got %d %s", a.code, a.text)
	}
	if got := sendRequest(t, s, "GET", path, auth, nil); got.body["busy"] != true || got.body["status"] != "online" {
		t.Errorf("a busy runner shows as %s", got.text)
	}
	r.Stop()
	if code := r.Wait(); code != 0 {
		t.Errorf("exit code %d after a signal:\n%s", code, r.Output())
	}
	state = s.WaitUntil("the job ended", hasCompletedJobs(1))
	if state.Jobs[0].Conclusion != "cancelled" || len(state.Runners) != 0 {
		t.Errorf("after the signal: %+v", state)
	}
}

func TestBusyFaultRefusesDelete(t *testing.T) {
	s := githubtest.New(t, github.Options{Faults: control.Faults{DeleteBusy: 1}})
	createJITConfig(t, s, "vm-1", "x")
	if a := sendRequest(t, s, "DELETE", repoRunnerAccess+"/1", auth, nil); a.code != 422 {
		t.Errorf("got %d %s", a.code, a.text)
	}
	requireNoError(t, s.SetFaults(control.Faults{}))
	if a := sendRequest(t, s, "DELETE", repoRunnerAccess+"/1", auth, nil); a.code != 204 {
		t.Errorf("got %d %s", a.code, a.text)
	}
}
