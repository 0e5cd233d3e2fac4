// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

// publicLink matches links to github.com. The links to releases of the runner are the same for all servers.
var publicLink = regexp.MustCompile(`https://(api\.)?github\.com/[^"]*`)

func findPublicLinks(text string) []string {
	var out []string
	for _, link := range publicLink.FindAllString(text, -1) {
		if !strings.HasPrefix(link, "https://github.com/actions/runner/releases/") {
			out = append(out, link)
		}
	}
	return out
}

func formatNumber(n int64) string { return strconv.FormatInt(n, 10) }

// The links of an Enterprise Server have its URL in webhooks and responses. Programs use the links
// to identify the server that sent a webhook.
func TestEnterpriseServerLinks(t *testing.T) {
	t.Parallel()
	const server = "https://github.example.internal"
	s, hooks := newServerWithWebhooks(t, github.Options{
		URL: server, Enterprise: "acme", Groups: []github.Group{{Owner: "octo-org", Name: "fast", Visibility: "selected"}},
	})
	job := s.Queue(control.JobSpec{Labels: []string{"x"}})[0]
	s.Queue(control.JobSpec{Labels: []string{"x"}, Environment: "production"})
	s.WaitUntil("the webhooks are delivered", hasDelivered(2))
	for _, hook := range hooks.Webhooks() {
		if links := findPublicLinks(string(hook.Body)); len(links) > 0 {
			t.Errorf("a webhook links to %v", links)
		}
		if got := hook.Header.Get("X-Github-Enterprise-Host"); got != "github.example.internal" {
			t.Errorf("X-GitHub-Enterprise-Host is %q", got)
		}
		var body struct {
			Repository struct {
				HTML string `json:"html_url"`
				API  string `json:"url"`
			} `json:"repository"`
			Job struct {
				HTML string `json:"html_url"`
			} `json:"workflow_job"`
		}
		requireNoError(t, json.Unmarshal(hook.Body, &body))
		if body.Repository.HTML != server+"/octo-org/octo-repo" || body.Repository.API != server+"/api/v3/repos/octo-org/octo-repo" ||
			!strings.HasPrefix(body.Job.HTML, server+"/octo-org/octo-repo/actions/runs/") {
			t.Errorf("links of the webhook: %+v", body)
		}
	}
	repo := "/api/v3/repos/octo-org/octo-repo"
	run := repo + "/actions/runs/" + formatNumber(job.RunID)
	for _, path := range []string{
		repo + "/actions/runs", run, run + "/jobs", repo + "/actions/jobs/" + formatNumber(job.ID), repo + "/actions/runners/downloads",
		"/api/v3/orgs/octo-org/actions/runner-groups", "/api/v3/enterprises/acme/actions/runner-groups", "/api/v3/orgs/octo-org/hooks",
	} {
		got := sendRequest(t, s, http.MethodGet, path, auth, nil)
		if got.code != http.StatusOK {
			t.Errorf("%s: %d %s", path, got.code, got.text)
		}
		if links := findPublicLinks(got.text); len(links) > 0 {
			t.Errorf("%s links to %v", path, links)
		}
	}
}

// The links to the pages of an App have the URL of the server, too.
func TestEnterpriseServerAppLinks(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	s := githubtest.New(t, github.Options{URL: "https://github.example.internal", App: newApp(key, listRunnerPermissions())})
	for _, path := range []string{"/api/v3/app", "/api/v3/app/installations"} {
		got := sendRequest(t, s, http.MethodGet, path, "Bearer "+newAppJWT(t, key, time.Now()), nil)
		if links := findPublicLinks(got.text); got.code != http.StatusOK || len(links) > 0 {
			t.Errorf("%s: %d, links to %v", path, got.code, links)
		}
	}
}
