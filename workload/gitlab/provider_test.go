// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

func newProjectConfig(server *gitlabtest.Server) gitlab.Config {
	return gitlab.Config{URL: server.URL, Project: gitlabtest.Project, Token: gitlabtest.Token}
}

func newGroupConfig(server *gitlabtest.Server) gitlab.Config {
	return gitlab.Config{URL: server.URL, Group: gitlabtest.Group, Token: gitlabtest.Token}
}

func newInstanceConfig(server *gitlabtest.Server) gitlab.Config {
	return gitlab.Config{URL: server.URL, Token: gitlabtest.Token}
}

func newTestProvider(t *testing.T, config gitlab.Config) workload.Provider {
	t.Helper()

	out, err := gitlab.New(config)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func newRequest(name string) workload.RunnerRequest {
	return workload.RunnerRequest{Name: name, Labels: []string{"linux", mark}, Description: "made for a test"}
}

func TestRunnerLifecycle(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})

	for name, test := range map[string]struct {
		config gitlab.Config
		scope  string
	}{
		"project":           {newProjectConfig(server), gitlabtest.Project},
		"project by its id": {gitlab.Config{URL: server.URL + "/", Project: "380", Token: gitlabtest.Token + "\n"}, gitlabtest.Project},
		"group":             {newGroupConfig(server), gitlabtest.Group},
		"subgroup by its id, URL of the API": {
			gitlab.Config{URL: server.URL + "/api/v4", Group: "36", Token: gitlabtest.Token}, "gitlab-org/ci",
		},
		"instance": {newInstanceConfig(server), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// No name is a prefix of another, because runners are listed by the prefix of their
			// names.
			checkLifecycle(t, server, newTestProvider(t, test.config), "life-"+strings.NewReplacer(" ", "-", ",", "").Replace(name)+"-1", test.scope)
		})
	}
}

func checkLifecycle(t *testing.T, server *gitlabtest.Server, p workload.Provider, name, scope string) {
	t.Helper()

	if err := p.Validate(t.Context()); err != nil {
		t.Fatalf("Validate: %v", err)
	}

	issued, err := p.IssueCredential(t.Context(), newRequest(name))
	if err != nil || !strings.HasPrefix(issued.RunnerToken, "glrt-") || issued.RegistrationURL != server.URL || issued.JITConfig != "" {
		t.Fatalf("Issue = %+v, %v", issued, err)
	}

	found, err := p.FindRunner(t.Context(), name, 0)
	want := workload.Runner{ID: issued.RunnerID, Name: name, Labels: []string{mark}}

	if diff := cmp.Diff(want, found); err != nil || diff != "" {
		t.Fatalf("Find: %v (-want +got):\n%s", err, diff)
	}

	for _, runner := range server.State().Runners {
		if strconv.FormatInt(runner.ID, 10) == issued.RunnerID && (runner.Scope != scope || !cmp.Equal(runner.Labels, []string{"linux", mark})) {
			t.Errorf("GitLab has %+v", runner)
		}
	}

	if all, err := p.ListRunners(t.Context(), name); err != nil || len(all) != 1 {
		t.Errorf("Runners = %v, %v", all, err)
	}

	for range 2 {
		if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
			t.Errorf("Deregister: %v", err)
		}
	}

	for _, age := range []time.Duration{time.Hour, 0} {
		if _, err := p.FindRunner(t.Context(), name, age); !workload.Is(err, workload.NotFound) {
			t.Errorf("Find after Deregister, at most %s old: %v", age, err)
		}
	}
}

// The description of a pool's workload is the maintenance note of its runners.
func TestDescriptionIsTheNote(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})

	issued, err := newTestProvider(t, newProjectConfig(server)).IssueCredential(t.Context(), newRequest("noted"))
	if err != nil {
		t.Fatal(err)
	}

	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v4/runners/"+issued.RunnerID, http.NoBody)
	request.Header.Set("Private-Token", gitlabtest.Token)

	response := httptest.NewRecorder()
	server.Handler().ServeHTTP(response, request)

	var runner struct {
		Note string `json:"maintenance_note"`
	}
	if err := json.Unmarshal(response.Body.Bytes(), &runner); err != nil || runner.Note != "made for a test" {
		t.Errorf("GitLab has the runner %s, %v; want the note of the request", response.Body, err)
	}
}

func TestIssueTokenThatExpires(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{TokenLifetime: time.Hour})

	got, err := newTestProvider(t, newGroupConfig(server)).IssueCredential(t.Context(), newRequest("expires"))
	if left := time.Until(got.ExpiresAt); err != nil || left < 59*time.Minute || left > time.Hour {
		t.Errorf("Issue = %+v, %v", got, err)
	}
}

func TestIssueWithNameTaken(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	clk := clocktesting.NewFakeClock(time.Now())

	p, err := gitlab.NewWithClock(newGroupConfig(server), clk)
	if err != nil {
		t.Fatal(err)
	}

	first, err := p.IssueCredential(t.Context(), newRequest("twice"))
	if err != nil {
		t.Fatal(err)
	}

	clk.Step(time.Minute)

	second, err := p.IssueCredential(t.Context(), newRequest("twice"))
	if err != nil || second.RunnerID == first.RunnerID || len(server.State().Runners) != 1 {
		t.Fatalf("an offline remnant is not replaced: %q then %q, %v", first.RunnerID, second.RunnerID, err)
	}

	server.StartRunner(t, second.RunnerToken)
	server.WaitUntil("the runner is online", func(s control.State) bool { return len(s.Runners) == 1 && s.Runners[0].Online })
	clk.Step(time.Minute)

	if _, err := p.IssueCredential(t.Context(), newRequest("twice")); !workload.Is(err, workload.Conflict) || !strings.Contains(err.Error(), "twice") {
		t.Errorf("an online runner with the same name: %v", err)
	}

	if state := server.State(); len(state.Runners) != 1 || !state.Runners[0].Online {
		t.Errorf("the online runner was changed: %+v", state.Runners)
	}
}

func TestDeregisterBusy(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	p := newTestProvider(t, newGroupConfig(server))
	queued := server.Queue(control.JobSpec{Labels: []string{"linux"}, Duration: time.Hour, Count: 2})

	issued, err := p.IssueCredential(t.Context(), newRequest("busy"))
	if err != nil {
		t.Fatal(err)
	}

	server.StartRunner(t, issued.RunnerToken)
	server.WaitUntil("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" })

	if found, err := p.FindRunner(t.Context(), "busy", 0); err != nil || !found.Online || !found.Busy {
		t.Errorf("Find = %+v, %v", found, err)
	}

	for range 2 {
		err := p.Deregister(t.Context(), issued.RunnerID)
		checkError(t, err, workload.RunnerBusy, workload.ReasonRunnerBusy, "runs a job")
	}

	// The runner is paused, because it is busy, and takes no other job.
	if found, err := p.FindRunner(t.Context(), "busy", 0); err != nil || found.Online || !found.Busy {
		t.Errorf("Find of a paused runner = %+v, %v", found, err)
	}

	job, err := p.GetJob(t.Context(), gitlabtest.Project, strconv.FormatInt(queued[0].ID, 10))
	if err != nil || job.State != v1alpha1.JobRunning || job.RunnerName != "busy" || job.StartedAt == nil {
		t.Errorf("Job = %+v, %v", job, err)
	}

	if err := server.Cancel(queued[0].ID); err != nil {
		t.Fatal(err)
	}

	if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
		t.Errorf("Deregister after the job: %v", err)
	}

	if state := server.State(); len(state.Runners) != 0 || state.Jobs[1].Status != "queued" {
		t.Errorf("left: %+v", state)
	}
}

// Deregister also works with servers that do not return whether a runner is busy.
func TestDeregisterBusyOnOlderServer(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{HideExecutionStatus: true})
	p := newTestProvider(t, newProjectConfig(server))
	server.Queue(control.JobSpec{Labels: []string{"linux"}, Duration: time.Hour})

	issued, err := p.IssueCredential(t.Context(), newRequest("busy"))
	if err != nil {
		t.Fatal(err)
	}

	server.StartRunner(t, issued.RunnerToken)
	server.WaitUntil("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" })

	if found, err := p.FindRunner(t.Context(), "busy", 0); err != nil || !found.Online || found.Busy {
		t.Errorf("Find = %+v, %v", found, err)
	}

	if err := p.Deregister(t.Context(), issued.RunnerID); !workload.Is(err, workload.RunnerBusy) {
		t.Errorf("Deregister: %v", err)
	}
}

func TestJob(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	p := newTestProvider(t, newProjectConfig(server))
	queued := server.Queue(control.JobSpec{Labels: []string{"linux", "GPU"}, Name: "compile", Workflow: "nightly"})[0]
	id := strconv.FormatInt(queued.ID, 10)

	job, err := p.GetJob(t.Context(), gitlabtest.Project, id)
	want := workload.Job{
		Platform: v1alpha1.WorkloadGitLabCI, ID: id, Name: "compile", Repository: gitlabtest.Project, Organization: "gitlab-org/ci",
		RunID: strconv.FormatInt(queued.RunID, 10), Workflow: "test", URL: server.URL + "/" + gitlabtest.Project + "/-/jobs/" + id,
		Labels: []string{"linux", "GPU"}, State: v1alpha1.JobQueued,
	}

	if diff := cmp.Diff(want, job, cmpopts.IgnoreFields(workload.Job{}, "QueuedAt")); err != nil || diff != "" || job.QueuedAt == nil {
		t.Errorf("Job: %v (-want +got):\n%s", err, diff)
	}

	if err := server.Cancel(queued.ID); err != nil {
		t.Fatal(err)
	}

	job, err = p.GetJob(t.Context(), gitlabtest.Project, id)
	if err != nil || job.State != v1alpha1.JobCompleted || job.Conclusion != "canceled" || job.CompletedAt == nil || job.RunnerName != "" {
		t.Errorf("Job = %+v, %v", job, err)
	}

	for name, at := range map[string][2]string{
		"missing job": {gitlabtest.Project, "5"}, "missing project": {"gitlab-org/nothing", id},
	} {
		if _, err := p.GetJob(t.Context(), at[0], at[1]); !workload.Is(err, workload.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}

	for _, at := range map[string][2]string{
		"no project": {"", id}, "a name": {"app", id}, "no number": {gitlabtest.Project, "x"}, "negative": {gitlabtest.Project, "-1"},
		"a parent directory": {"gitlab-org/../x", id}, "a query": {"a/b?c", id},
	} {
		_, err := p.GetJob(t.Context(), at[0], at[1])
		checkError(t, err, workload.Rejected, gitlab.ReasonRequest, "is not a valid job of GitLab")
	}
}

func TestJobsOfAScope(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{Projects: []sim.Project{
		{Path: gitlabtest.Project}, {Path: "gitlab-org/other"}, {Path: "gitlab-org/plain", NoPipelines: true}, {Path: "elsewhere/app"},
	}})
	server.Queue(control.JobSpec{Labels: []string{"linux"}, Count: 130})
	server.Queue(control.JobSpec{Repo: "gitlab-org/other", Labels: []string{"linux"}})
	elsewhere := server.Queue(control.JobSpec{Repo: "elsewhere/app"})[0]
	server.Queue(control.JobSpec{Labels: []string{"linux"}, Environment: "production"})

	over := server.Queue(control.JobSpec{Labels: []string{"linux"}})[0]
	if err := server.Cancel(over.ID); err != nil {
		t.Fatal(err)
	}

	for name, test := range map[string]struct {
		config       gitlab.Config
		repositories []string
		want         map[string]int
	}{
		"a project has its own alone":        {newProjectConfig(server), []string{"elsewhere/app"}, map[string]int{gitlabtest.Project: 130}},
		"a group has those of subgroups":     {newGroupConfig(server), nil, map[string]int{gitlabtest.Project: 130, "gitlab-org/other": 1}},
		"a group leaves out others":          {newGroupConfig(server), []string{"elsewhere/app", "gitlab-org/gone", "GitLab-org/other"}, map[string]int{gitlabtest.Project: 130, "gitlab-org/other": 1}},
		"an instance has the given projects": {newInstanceConfig(server), []string{"elsewhere/app", "no project", "elsewhere/app"}, map[string]int{"elsewhere/app": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			poller, ok := newTestProvider(t, test.config).(workload.Poller)
			if !ok {
				t.Fatal("the provider is not a Poller")
			}

			jobs, err := poller.ListJobs(t.Context(), test.repositories)
			if err != nil {
				t.Fatal(err)
			}

			got := map[string]int{}
			for _, job := range jobs {
				got[job.Repository]++

				if job.State != v1alpha1.JobQueued || job.LabelsUnknown || (job.ID == strconv.FormatInt(elsewhere.ID, 10)) != (len(job.Labels) == 0) {
					t.Errorf("job = %+v", job)
				}
			}

			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("jobs by project (-want +got):\n%s", diff)
			}
		})
	}

	whole, _ := newTestProvider(t, newInstanceConfig(server)).(workload.Poller)
	_, err := whole.ListJobs(t.Context(), nil)
	checkError(t, err, workload.Rejected, workload.ReasonRepositoriesMissing, "the instance: the platform has no job list for it; name repositories in spec.demand")
}

func TestValidateExplains(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{Tokens: []sim.Token{
		{Token: "glpat-of-an-owner-0000", Scopes: []string{"api"}, Roles: map[string]string{"gitlab-org": "owner"}},
		{Token: "glpat-of-a-developer-0", Scopes: []string{"api"}, Roles: map[string]string{"gitlab-org": "developer"}},
		{Token: "glpat-of-a-stranger-00", Scopes: []string{"api"}, Roles: map[string]string{"elsewhere": "owner"}},
		{Token: "glpat-for-reading-0000", Scopes: []string{"read_api"}},
		{Token: "glpat-revoked-00000000", Scopes: []string{"api"}, Revoked: true},
		{Token: "gloas-of-an-app-000000", Scopes: []string{"api"}, OAuth: true},
	}})

	tests := map[string]struct {
		token, project, group string
		reason, message       string
	}{
		"an owner":                        {token: "glpat-of-an-owner-0000", group: "gitlab-org"},
		"an OAuth token":                  {token: "gloas-of-an-app-000000", project: gitlabtest.Project},
		"wrong token":                     {token: "glpat-wrong-0000000000", group: "gitlab-org", reason: gitlab.ReasonCredentials, message: "put a valid token into the Secret"},
		"revoked token":                   {token: "glpat-revoked-00000000", group: "gitlab-org", reason: gitlab.ReasonCredentials, message: "Token was revoked"},
		"scopes missing":                  {token: "glpat-for-reading-0000", group: "gitlab-org", reason: gitlab.ReasonPermission, message: "lacks the scopes create_runner, manage_runner"},
		"no such group":                   {token: "glpat-of-an-owner-0000", group: "gitlab-com", reason: gitlab.ReasonScope, message: "no group gitlab-com"},
		"no such project":                 {token: "glpat-of-an-owner-0000", project: "gitlab-org/no", reason: gitlab.ReasonScope, message: "no project gitlab-org/no"},
		"a project that is hidden":        {token: "glpat-of-a-stranger-00", project: gitlabtest.Project, reason: gitlab.ReasonScope, message: "hides it"},
		"no right to runners":             {token: "glpat-of-a-developer-0", project: gitlabtest.Project, reason: gitlab.ReasonPermission, message: "a Maintainer of the project"},
		"no right to the instance":        {token: "glpat-of-an-owner-0000", reason: gitlab.ReasonPermission, message: "an administrator of the instance"},
		"no permission for group runners": {token: "glpat-of-a-developer-0", group: "gitlab-org", reason: gitlab.ReasonPermission, message: "an Owner of the group"},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p := newTestProvider(t, gitlab.Config{URL: server.URL, Project: test.project, Group: test.group, Token: test.token})

			err := p.Validate(t.Context())
			if test.reason == "" {
				if err != nil {
					t.Errorf("Validate: %v", err)
				}

				return
			}

			checkError(t, err, workload.Rejected, test.reason, test.message)

			if strings.Contains(fmt.Sprintf("%v %+v", err, err), test.token) {
				t.Errorf("the error holds the token: %v", err)
			}
		})
	}
}

func checkError(t *testing.T, err error, kind workload.Kind, reason, message string) {
	t.Helper()

	got, ok := errors.AsType[*workload.Error](err)
	if !ok || got.Kind != kind || got.Reason != reason || !strings.Contains(got.Message, message) {
		t.Errorf("error = %v; want %s %s: ...%s...", err, kind, reason, message)
	}
}

// Each call reports the missing permission and the one that it needs.
func TestCallsExplain(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{Tokens: []sim.Token{
		{Token: gitlabtest.Token, Scopes: []string{"read_api"}},
		{Token: "glpat-of-a-maintainer-", Scopes: []string{"api"}, Roles: map[string]string{"gitlab-org": "maintainer"}},
		{Token: "glpat-of-an-owner-0000", Scopes: []string{"api"}},
	}})
	p := newTestProvider(t, newProjectConfig(server))
	own := newTestProvider(t, gitlab.Config{URL: server.URL, Group: gitlabtest.Group, Token: "glpat-of-an-owner-0000"})

	issued, err := own.IssueCredential(t.Context(), newRequest("theirs"))
	if err != nil {
		t.Fatal(err)
	}

	_, err = p.IssueCredential(t.Context(), newRequest("x"))
	checkError(t, err, workload.Rejected, gitlab.ReasonPermission, "create_runner")

	err = p.Deregister(t.Context(), issued.RunnerID)
	checkError(t, err, workload.Rejected, gitlab.ReasonPermission, "manage_runner")

	maintainer := gitlab.Config{URL: server.URL, Group: gitlabtest.Group, Token: "glpat-of-a-maintainer-"}
	_, err = newTestProvider(t, maintainer).IssueCredential(t.Context(), newRequest("x"))
	checkError(t, err, workload.Rejected, gitlab.ReasonPermission, "Insufficient permissions")

	err = newTestProvider(t, maintainer).Deregister(t.Context(), issued.RunnerID)
	checkError(t, err, workload.Rejected, gitlab.ReasonPermission, "No access granted")

	if state := server.State(); len(state.Runners) != 1 || state.Registered != 1 {
		t.Errorf("runners: %+v", state.Runners)
	}
}

func TestIssueRejects(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	p := newTestProvider(t, newProjectConfig(server))

	for name, test := range map[string]struct {
		edit    func(*workload.RunnerRequest)
		message string
	}{
		"no name":             {func(r *workload.RunnerRequest) { r.Name = "" }, "runner name"},
		"a name too long":     {func(r *workload.RunnerRequest) { r.Name = strings.Repeat("x", 65) }, "runner name"},
		"a name like a mark":  {func(r *workload.RunnerRequest) { r.Name = "x (hf-op-1)" }, "runner name"},
		"a name with a blank": {func(r *workload.RunnerRequest) { r.Name = "x " }, "runner name"},
		"too many tags": {
			func(r *workload.RunnerRequest) {
				for i := range 50 {
					r.Labels = append(r.Labels, strconv.Itoa(i))
				}
			}, "at most 50",
		},
		"a tag with a comma":         {func(r *workload.RunnerRequest) { r.Labels = []string{"a,b"} }, "comma"},
		"no tags, and none untagged": {func(r *workload.RunnerRequest) { r.Labels = nil }, "runUntagged"},
	} {
		req := newRequest("fine")
		test.edit(&req)

		_, err := p.IssueCredential(t.Context(), req)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkError(t, err, workload.Rejected, gitlab.ReasonRequest, test.message)
		})
	}

	untagged := newRequest("untagged")
	untagged.Labels, untagged.CanRunUntagged = nil, true

	if _, err := p.IssueCredential(t.Context(), untagged); err != nil {
		t.Errorf("a runner without tags that runs untagged jobs: %v", err)
	}

	err := p.Deregister(t.Context(), "x")
	checkError(t, err, workload.Rejected, gitlab.ReasonRequest, "is not a positive number")
}

func TestNewRejects(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		edit    func(*gitlab.Config)
		reason  string
		message string
	}{
		"no URL":               {func(c *gitlab.Config) { c.URL = "" }, gitlab.ReasonConfig, "not an http(s) URL"},
		"a host":               {func(c *gitlab.Config) { c.URL = "gitlab.example.com" }, gitlab.ReasonConfig, "not an http(s) URL"},
		"another scheme":       {func(c *gitlab.Config) { c.URL = "ftp://gitlab.example.com" }, gitlab.ReasonConfig, "not an http(s) URL"},
		"URL with credentials": {func(c *gitlab.Config) { c.URL = "https://me:hunter2@gitlab.example.com" }, gitlab.ReasonConfig, "contains credentials"},
		"URL with a query":     {func(c *gitlab.Config) { c.URL = "https://gitlab.example.com?private_token=hunter2" }, gitlab.ReasonConfig, "query"},
		"no token":             {func(c *gitlab.Config) { c.Token = " \n" }, gitlab.ReasonCredentials, "no access token"},
		"both":                 {func(c *gitlab.Config) { c.Group = "a" }, gitlab.ReasonConfig, "remove one"},
		"a project's name":     {func(c *gitlab.Config) { c.Project = "app" }, gitlab.ReasonConfig, "full path"},
		"an odd project":       {func(c *gitlab.Config) { c.Project = "a/../b" }, gitlab.ReasonConfig, "full path"},
		"an odd group":         {func(c *gitlab.Config) { c.Project, c.Group = "", "a b" }, gitlab.ReasonConfig, "full path"},
	} {
		config := gitlab.Config{URL: "https://gitlab.example.com", Project: "acme/app", Token: "glpat-x"}
		test.edit(&config)

		_, err := gitlab.New(config)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkError(t, err, workload.Rejected, test.reason, test.message)

			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error holds a secret: %v", err)
			}
		})
	}
}
