// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
)

func TestUnknownCallsAreViolations(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	for _, path := range []string{"/groups", "/projects/380/pipelines", "/runners/1/reset_authentication_token"} {
		if a := sendRequest(t, s, "GET", path, gitlabtest.Token, nil); a.code != http.StatusNotImplemented {
			t.Errorf("%s: status %d", path, a.code)
		}
	}
	for _, v := range s.ExpectViolations(t, 3) {
		if v.Kind != "unknown-path" {
			t.Errorf("violation: %+v", v)
		}
	}
}

func TestRequestsAreChecked(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	project := map[string]any{"runner_type": "project_type", "project_id": 380}
	with := func(key string, value any) map[string]any {
		out := map[string]any{key: value}
		for k, v := range project {
			if _, exists := out[k]; !exists {
				out[k] = v
			}
		}
		return out
	}
	for name, test := range map[string]struct {
		method, path     string
		body             any
		code, violations int
		wantText         string
	}{
		"an unknown parameter":         {"POST", "/user/runners", with("tags", []string{"x"}), 201, 1, "token"},
		"an unknown query":             {"GET", "/runners/all?scope=active", nil, 200, 1, "["},
		"a list for a text":            {"POST", "/user/runners", with("description", []string{"5"}), 400, 1, "description is invalid"},
		"a number for a text":          {"POST", "/user/runners", with("description", 5), 201, 0, "token"},
		"a text for a number":          {"POST", "/user/runners", with("project_id", "gitlab-org/app"), 400, 1, "project_id is invalid"},
		"a number as text":             {"POST", "/user/runners", with("project_id", "380"), 201, 0, "token"},
		"a number for a list":          {"POST", "/user/runners", with("tag_list", 5), 400, 1, "tag_list is invalid"},
		"a text for a list":            {"POST", "/user/runners", with("tag_list", "a,b"), 201, 0, "token"},
		"a text for a flag":            {"POST", "/user/runners", with("locked", "yes"), 201, 0, "token"},
		"another text for a flag":      {"POST", "/user/runners", with("locked", "perhaps"), 400, 1, "locked is invalid"},
		"an unknown type":              {"POST", "/user/runners", map[string]any{"runner_type": "shared"}, 400, 1, "does not have a valid value"},
		"no type":                      {"POST", "/user/runners", map[string]any{"project_id": 380}, 400, 1, "runner_type is missing"},
		"no project":                   {"POST", "/user/runners", map[string]any{"runner_type": "project_type"}, 400, 0, "project_id is missing"},
		"no group":                     {"POST", "/user/runners", map[string]any{"runner_type": "group_type"}, 400, 0, "group_id is missing"},
		"a project that is not there":  {"POST", "/user/runners", with("project_id", 5), 400, 0, "Missing/invalid scope"},
		"a form with the type JSON":    {"POST", "/user/runners", "runner_type=project_type", 400, 1, "Problems parsing JSON"},
		"tags, too many":               {"POST", "/user/runners", with("tag_list", strings.Split(strings.Repeat("x,", 50), ",")), 201, 0, "token"},
		"no tags, and none untagged":   {"POST", "/user/runners", with("run_untagged", false), 400, 0, "can not be empty"},
		"a timeout of a minute":        {"POST", "/user/runners", with("maximum_timeout", 60), 400, 0, "at least 10 minutes"},
		"a note too long":              {"POST", "/user/runners", with("maintenance_note", strings.Repeat("x", 1025)), 400, 0, "too long"},
		"a description too long":       {"POST", "/user/runners", with("description", strings.Repeat("x", 1025)), 400, 0, "too long"},
		"a status of jobs, misspelled": {"GET", "/projects/380/jobs?scope[]=queued", nil, 400, 1, "does not have a valid value"},
		"a page of letters":            {"GET", "/runners/all?page=x", nil, 400, 1, "page is invalid"},
	} {
		a := sendRequest(t, s, test.method, test.path, gitlabtest.Token, test.body)
		if a.code != test.code || !strings.Contains(a.text, test.wantText) {
			t.Errorf("%s: %d %s, want %d %s", name, a.code, a.text, test.code, test.wantText)
		}
		if got := s.TakeViolations(); len(got) != test.violations {
			t.Errorf("%s: violations %+v, want %d", name, got, test.violations)
		}
	}
	var tags []string
	for i := range 51 {
		tags = append(tags, fmt.Sprint("t", i))
	}
	if a := sendRequest(t, s, "POST", "/user/runners", gitlabtest.Token, with("tag_list", tags)); a.code != 400 || !strings.Contains(a.text, "limit the number of tags") {
		t.Errorf("51 tags: %d %s", a.code, a.text)
	}
	header := http.Header{"Private-Token": {gitlabtest.Token}, "Content-Type": {"application/xml"}}
	if a := sendWithHeader(t, s, "POST", "/user/runners", header, "<runner/>"); a.code != http.StatusUnsupportedMediaType {
		t.Errorf("XML: %d", a.code)
	}
	s.ExpectViolations(t, 1)
}

// GitLab's documentation has examples with both kinds of forms.
func TestForms(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	fields := url.Values{"runner_type": {"project_type"}, "project_id": {"380"}, "tag_list": {"a,b"}, "locked": {"true"}}
	var parts bytes.Buffer
	multi := multipart.NewWriter(&parts)
	for name, values := range fields {
		requireNoError(t, multi.WriteField(name, values[0]))
	}
	requireNoError(t, multi.Close())
	for media, body := range map[string]string{
		"application/x-www-form-urlencoded": fields.Encode(), multi.FormDataContentType(): parts.String(),
	} {
		header := http.Header{"Private-Token": {gitlabtest.Token}, "Content-Type": {media}}
		made := sendWithHeader(t, s, "POST", "/user/runners", header, body)
		got := sendRequest(t, s, "GET", fmt.Sprint("/runners/", made.body["id"]), gitlabtest.Token, nil)
		if made.code != http.StatusCreated || fmt.Sprint(got.body["tag_list"]) != "[a b]" || got.body["locked"] != true {
			t.Errorf("%s: %d %s, %s", media, made.code, made.text, got.text)
		}
	}
}

// Lists have links to their other pages. The links keep the other parameters of the request.
func TestPagesAreLinked(t *testing.T) {
	t.Parallel()
	const base = "https://gitlab.example.internal"
	s := gitlabtest.New(t, gitlab.Options{})
	s.SetURL(base)
	for range 5 {
		createRunner(t, s, nil)
	}
	a := sendRequest(t, s, "GET", "/projects/380/runners?type=project_type&per_page=2&page=2", gitlabtest.Token, nil)
	at := func(page, rel string) string {
		return "<" + base + "/api/v4/projects/380/runners?page=" + page + "&per_page=2&type=project_type>; rel=\"" + rel + "\""
	}
	want := strings.Join([]string{at("1", "prev"), at("3", "next"), at("1", "first"), at("3", "last")}, ", ")
	if got := a.header.Get("Link"); got != want {
		t.Errorf("Link: %s\nwant: %s", got, want)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{Tokens: []gitlab.Token{
		{Token: "admin", Scopes: []string{"api"}, Admin: true},
		{Token: "owner", Scopes: []string{"api"}, Roles: map[string]string{"gitlab-org": "owner"}},
		{Token: "maintainer", Scopes: []string{"api"}, Roles: map[string]string{gitlabtest.Project: "maintainer", "gitlab-org": "guest"}},
		{Token: "guest", Scopes: []string{"api"}, Roles: map[string]string{"gitlab-org": "guest"}},
		{Token: "outsider", Scopes: []string{"api"}, Roles: map[string]string{"elsewhere": "owner"}},
		{Token: "reader", Scopes: []string{"read_api"}},
		{Token: "gone", Scopes: []string{"api"}, Revoked: true},
	}})
	made := sendRequest(t, s, "POST", "/user/runners", "owner", map[string]any{"runner_type": "group_type", "group_id": 35})
	id, _ := made.body["id"].(float64)
	runner := fmt.Sprintf("/runners/%d", int(id))
	for name, test := range map[string]struct {
		method, path, token string
		body                any
		code                int
	}{
		"no token":                          {"GET", "/projects/380", "", nil, 401},
		"wrong token":                       {"GET", "/projects/380", "x", nil, 401},
		"revoked token":                     {"GET", "/projects/380", "gone", nil, 401},
		"any token may read itself":         {"GET", "/personal_access_tokens/self", "reader", nil, 200},
		"a project by its path":             {"GET", "/projects/gitlab-org%2Fci%2Fgitlab-test", "guest", nil, 200},
		"a project that is hidden":          {"GET", "/projects/380", "outsider", nil, 404},
		"a group that is hidden":            {"GET", "/groups/gitlab-org", "outsider", nil, 404},
		"a group by its id":                 {"GET", "/groups/35", "guest", nil, 200},
		"jobs require a reporter":           {"GET", "/projects/380/jobs", "guest", nil, 403},
		"a project's runners, a guest":      {"GET", "/projects/380/runners", "guest", nil, 403},
		"a project's runners, a maintainer": {"GET", "/projects/380/runners", "maintainer", nil, 200},
		"all runners, no administrator":     {"GET", "/runners/all", "owner", nil, 403},
		"a scope too few":                   {"POST", "/user/runners", "reader", map[string]any{"runner_type": "instance_type"}, 403},
		"an instance's, no administrator":   {"POST", "/user/runners", "owner", map[string]any{"runner_type": "instance_type"}, 403},
		"an instance's":                     {"POST", "/user/runners", "admin", map[string]any{"runner_type": "instance_type"}, 201},
		"a project's, a maintainer":         {"POST", "/user/runners", "maintainer", map[string]any{"runner_type": "project_type", "project_id": 380}, 201},
		"a group's, a maintainer below it":  {"POST", "/user/runners", "maintainer", map[string]any{"runner_type": "group_type", "group_id": 35}, 403},
		"pausing it, too":                   {"PUT", runner, "maintainer", map[string]any{"paused": true}, 403},
		"removing it, too":                  {"DELETE", runner, "maintainer", nil, 403},
		"its details, too":                  {"GET", runner, "maintainer", nil, 403},
		"its details, its owner":            {"GET", runner, "owner", nil, 200},
		"its jobs, its owner":               {"GET", runner + "/jobs?status=running", "owner", nil, 200},
		"a runner that is not there":        {"DELETE", "/runners/5", "owner", nil, 404},
		"a job that is not there":           {"GET", "/projects/380/jobs/5", "owner", nil, 404},
		"the current user":                  {"GET", "/user", "reader", nil, 200},
	} {
		if a := sendRequest(t, s, test.method, test.path, test.token, test.body); a.code != test.code {
			t.Errorf("%s: %d %s, want %d", name, a.code, a.text, test.code)
		}
	}
	if a := sendWithHeader(t, s, "GET", "/user", http.Header{"Authorization": {"Bearer owner"}}, nil); a.code != 200 {
		t.Errorf("a bearer token: %d %s", a.code, a.text)
	}
	requireNoError(t, s.RevokeToken("owner"))
	if a := sendRequest(t, s, "GET", "/user", "owner", nil); a.code != 401 || !strings.Contains(a.text, "Token was revoked") {
		t.Errorf("after Revoke: %d %s", a.code, a.text)
	}
	if err := s.RevokeToken("nobody's"); err == nil {
		t.Error("a token that is not there was revoked")
	}
}

func TestRunnerStatuses(t *testing.T) {
	t.Parallel()
	clk := newFakeClock()
	s := gitlabtest.New(t, gitlab.Options{Clock: clk})
	id, token := createRunner(t, s, map[string]any{"tag_list": []string{"a", "b", "a"}, "maintenance_note": "n", "locked": true})
	path := fmt.Sprintf("/runners/%d", int(id))
	expect := func(when, status string, online any) {
		t.Helper()
		a := sendRequest(t, s, "GET", "/projects/380/runners?type=project_type", gitlabtest.Token, nil)
		if len(a.list) != 1 || a.list[0]["status"] != status || a.list[0]["online"] != online || a.list[0]["job_execution_status"] != "idle" {
			t.Errorf("%s: %s", when, a.text)
		}
		if _, hasTags := a.list[0]["tag_list"]; hasTags {
			t.Error("the list has tags, which GitLab's list does not have")
		}
	}
	expect("made", "never_contacted", nil)
	if a := requestJob(t, s, token); a.code != http.StatusNoContent {
		t.Fatalf("ask: %d", a.code)
	}
	expect("asked", "online", true)
	clk.Step(119 * time.Minute)
	expect("silent for less than two hours", "online", true)
	clk.Step(2 * time.Minute)
	expect("silent for two hours", "offline", false)
	clk.Step(7 * 24 * time.Hour)
	expect("silent for a week", "stale", false)
	if a := sendRequest(t, s, "PUT", path, gitlabtest.Token, map[string]any{"paused": true}); a.code != 200 || a.body["paused"] != true {
		t.Errorf("pause: %d %s", a.code, a.text)
	}
	requestJob(t, s, token)
	expect("paused", "paused", true)
	a := sendRequest(t, s, "GET", path, gitlabtest.Token, nil)
	if fmt.Sprint(a.body["tag_list"]) != "[a b]" || a.body["maintenance_note"] != "n" || a.body["locked"] != true || a.body["run_untagged"] != true {
		t.Errorf("details: %s", a.text)
	}
	for query, want := range map[string]int{
		"status=online": 1, "status=offline": 0, "status=paused": 1, "status=active": 0, "paused=true": 1, "paused=false": 0, "tag_list=a,b": 1,
		"tag_list[]=a&tag_list[]=c": 0, "type=group_type": 0,
	} {
		if a := sendRequest(t, s, "GET", "/runners/all?"+query, gitlabtest.Token, nil); len(a.list) != want {
			t.Errorf("%s: %s, want %d", query, a.text, want)
		}
	}
}

func TestPages(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	s.Queue(control.JobSpec{Count: 45})
	for query, want := range map[string][3]string{
		"":                     {"20", "45", "2"},
		"?page=3":              {"5", "45", ""},
		"?per_page=100":        {"45", "45", ""},
		"?per_page=1000":       {"45", "45", ""},
		"?page=9&per_page=100": {"0", "45", ""},
		"?scope[]=running":     {"0", "0", ""},
	} {
		a := sendRequest(t, s, "GET", "/projects/380/jobs"+query, gitlabtest.Token, nil)
		if got := [3]string{strconv.Itoa(len(a.list)), a.header.Get("X-Total"), a.header.Get("X-Next-Page")}; got != want {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	_, token := createRunner(t, s, nil)
	requireNoError(t, s.SetFaults(control.Faults{RateLimit: 1, RetryAfter: 90 * time.Second}))
	if a := sendRequest(t, s, "GET", "/user", gitlabtest.Token, nil); a.code != 429 || a.header.Get("Retry-After") != "90" || a.text != "Retry later\n" {
		t.Errorf("a limit: %d %v %q", a.code, a.header, a.text)
	}
	requireNoError(t, s.SetFaults(control.Faults{ServerError: 1}))
	if a := sendRequest(t, s, "GET", "/user", gitlabtest.Token, nil); a.code != 502 {
		t.Errorf("an outage: %d", a.code)
	}
	requireNoError(t, s.SetFaults(control.Faults{RegistrationRefused: 1}))
	if a := requestJob(t, s, token); a.code != 503 {
		t.Errorf("runners: status %d", a.code)
	}
	if a := sendRequest(t, s, "GET", "/user", gitlabtest.Token, nil); a.code != 200 {
		t.Errorf("users: status %d", a.code)
	}
	requireNoError(t, s.SetFaults(control.Faults{DeleteBusy: 1}))
	if a := sendRequest(t, s, "GET", "/runners/101/jobs?status=running", gitlabtest.Token, nil); len(a.list) != 1 {
		t.Errorf("busy for no reason: %s", a.text)
	}
	if err := s.SetFaults(control.Faults{WebhookLost: 2}); err == nil {
		t.Error("a probability of 2 was accepted")
	}
	if err := s.SetFaults(control.Faults{JITDelay: -1}); err == nil {
		t.Error("a negative delay was accepted")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	fine := []gitlab.Project{{Path: "a/b"}}
	for name, opts := range map[string]gitlab.Options{
		"no project":      {},
		"a project alone": {Projects: []gitlab.Project{{Path: "a"}}},
		"a bad path":      {Projects: []gitlab.Project{{Path: "a//b"}}},
		"an empty token":  {Projects: fine, Tokens: []gitlab.Token{{}}},
		"a bad role":      {Projects: fine, Tokens: []gitlab.Token{{Token: "x", Roles: map[string]string{"a": "king"}}}},
		"bad faults":      {Projects: fine, Faults: control.Faults{ServerError: -1}},
	} {
		if _, err := gitlab.New(opts); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// Lists have the oldest runner first. An update without a setting is rejected.
func TestRunnersAreListedOldestFirst(t *testing.T) {
	t.Parallel()
	s := gitlabtest.New(t, gitlab.Options{})
	first, _ := createRunner(t, s, nil)
	second, _ := createRunner(t, s, nil)
	a := sendRequest(t, s, "GET", "/projects/380/runners", gitlabtest.Token, nil)
	if len(a.list) != 2 || a.list[0]["id"] != first || a.list[1]["id"] != second {
		t.Errorf("listed %s, want %v and %v", a.text, first, second)
	}
	path := fmt.Sprint("/runners/", first)
	if got := sendRequest(t, s, "PUT", path, gitlabtest.Token, map[string]any{}); got.code != 400 || !strings.Contains(got.text, "at least one parameter") {
		t.Errorf("an empty update: %d %s", got.code, got.text)
	}
	s.ExpectViolations(t, 1)
}
