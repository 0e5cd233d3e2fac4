// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

// TestTags tests that a response is not sent again to a caller that has its ETag, and that such a
// call does not count as a call of the hour. The ETag of another caller has no effect.
func TestTags(t *testing.T) {
	const second = "ghp_second00000000000000000000000000000"
	s := githubtest.New(t, github.Options{PATs: []github.PAT{
		{Token: githubtest.PAT, Scopes: []string{"repo"}}, {Token: second, Scopes: []string{"repo"}},
	}})
	const path = "/repos/octo-org/octo-repo/actions/runs?status=queued"
	s.Queue(control.JobSpec{Labels: []string{"x"}})
	first := sendRequest(t, s, "GET", path, auth, nil)
	tag, left := first.header.Get("Etag"), first.header.Get("X-Ratelimit-Remaining")
	if first.code != 200 || !strings.HasPrefix(tag, `W/"`) {
		t.Fatalf("%d, tag %q", first.code, tag)
	}
	for name, same := range map[string]string{"weak": tag, "strong": strings.TrimPrefix(tag, "W/"), "one of several": `"x", ` + tag} {
		a := sendRequest(t, s, "GET", path, auth, nil, "If-None-Match", same)
		if a.code != 304 || a.text != "" || a.header.Get("Etag") != tag || a.header.Get("X-Ratelimit-Remaining") != left {
			t.Errorf("%s: %d %q, %s calls left, want %s", name, a.code, a.text, a.header.Get("X-Ratelimit-Remaining"), left)
		}
	}
	if a := sendRequest(t, s, "GET", path, "Bearer "+second, nil, "If-None-Match", tag); a.code != 200 {
		t.Errorf("another token's tag: %d", a.code)
	}
	s.Queue(control.JobSpec{Labels: []string{"x"}})
	if a := sendRequest(t, s, "GET", path, auth, nil, "If-None-Match", tag); a.code != 200 || a.header.Get("Etag") == tag {
		t.Errorf("after a change: %d, tag %s", a.code, a.header.Get("Etag"))
	}
}

// TestPoints tests that a read costs 1 and a write 5 of a credential's points per minute.
func TestPoints(t *testing.T) {
	clk := newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk, SecondaryPoints: 12})
	for i, step := range []struct {
		method string
		want   int
	}{{"POST", 201}, {"GET", 200}, {"POST", 201}, {"GET", 200}, {"GET", 403}, {"POST", 403}} {
		path, body := repoRunnerAccess, any(nil)
		if step.method == "POST" {
			path, body = path+"/generate-jitconfig", newJITBody("r"+strconv.Itoa(i), "x")
		}
		a := sendRequest(t, s, step.method, path, auth, body)
		if a.code != step.want || (a.code == 403) != (a.header.Get("Retry-After") == "60") {
			t.Errorf("call %d: %d, Retry-After %q, want %d", i, a.code, a.header.Get("Retry-After"), step.want)
		}
	}
	clk.Step(time.Minute)
	if a := sendRequest(t, s, "GET", repoRunnerAccess, auth, nil); a.code != 200 {
		t.Errorf("a minute later: %d", a.code)
	}
}

// TestRegistrationLimit tests that just-in-time configs count by scope, regardless of the caller.
func TestRegistrationLimit(t *testing.T) {
	clk := newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk, RegistrationLimit: 3})
	register := func(path, name string) int {
		return sendRequest(t, s, "POST", path+"/generate-jitconfig", auth, newJITBody(name, "x")).code
	}
	for i, want := range []int{201, 201, 201, 429} {
		if got := register(repoRunnerAccess, fmt.Sprintf("r%d", i)); got != want {
			t.Errorf("registration %d: %d, want %d", i, got, want)
		}
	}
	if got := register(orgRunnerAccess, "elsewhere"); got != 201 {
		t.Errorf("another scope: %d", got)
	}
	clk.Step(5 * time.Minute)
	if got := register(repoRunnerAccess, "later"); got != 201 {
		t.Errorf("five minutes later: %d", got)
	}
	requireNoError(t, s.SetFaults(control.Faults{RegistrationsLimited: 1}))
	if got := register(repoRunnerAccess, "fault"); got != 429 {
		t.Errorf("by a fault: %d", got)
	}
}

// TestInstallationsHaveOneQuota tests that a new token does not increase the number of calls.
func TestInstallationsHaveOneQuota(t *testing.T) {
	key := newKey(t)
	s := githubtest.New(t, github.Options{App: newApp(key, listRunnerPermissions()), RateLimit: 4})
	var tokens []string
	for range 2 {
		path := fmt.Sprintf("/app/installations/%d/access_tokens", installID)
		text, _ := sendRequest(t, s, "POST", path, "Bearer "+newAppJWT(t, key, time.Now()), nil).body["token"].(string)
		tokens = append(tokens, "Bearer "+text)
	}
	for i, want := range []int{200, 200, 200, 200, 403, 403} {
		if a := sendRequest(t, s, "GET", repoRunnerAccess, tokens[i%2], nil); a.code != want {
			t.Errorf("call %d: %d, want %d", i, a.code, want)
		}
	}
}

func TestTokensEnd(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	requireNoError(t, s.SetFaults(control.Faults{Unauthorized: 1}))
	if a := sendRequest(t, s, "GET", repoRunnerAccess, auth, nil); a.code != 401 {
		t.Errorf("by a fault: %d", a.code)
	}
	requireNoError(t, s.SetFaults(control.Faults{}))
	if a := sendRequest(t, s, "GET", repoRunnerAccess, auth, nil); a.code != 200 {
		t.Errorf("after the fault: %d", a.code)
	}
	s.RevokeToken(githubtest.PAT)
	if a := sendRequest(t, s, "GET", repoRunnerAccess, auth, nil); a.code != 401 || !strings.Contains(a.text, "Bad credentials") {
		t.Errorf("after it was revoked: %d %s", a.code, a.text)
	}
}

// TestHooks lists hooks by owner, without their secrets.
func TestHooks(t *testing.T) {
	key := newKey(t)
	s := githubtest.New(t, github.Options{
		App: newApp(key, map[string]string{"organization_hooks": "read"}),
		PATs: []github.PAT{
			{Token: githubtest.PAT, Scopes: []string{"repo", "admin:org_hook"}}, {Token: "weak", Scopes: []string{"public_repo"}},
		},
		Hooks: []github.Hook{
			{ID: 1, Owner: "app", URL: "https://a.example.com/app", Secret: hookSecret},
			{ID: 2, Owner: "octo-org", URL: "https://a.example.com/org", Secret: hookSecret},
			{ID: 3, Owner: githubtest.Repo, URL: "https://a.example.com/repo"},
		},
	})
	jwt := "Bearer " + newAppJWT(t, key, time.Now())
	for name, tc := range map[string]struct {
		path, auth string
		code       int
		has        string
	}{
		"the App's":              {"/app/hook/config", jwt, 200, `"https://a.example.com/app"`},
		"the App's, by a token":  {"/app/hook/config", auth, 401, ""},
		"an organisation's":      {"/orgs/octo-org/hooks", auth, 200, `"https://a.example.com/org"`},
		"a repository's":         {"/repos/octo-org/octo-repo/hooks", auth, 200, `"https://a.example.com/repo"`},
		"without the permission": {"/orgs/octo-org/hooks", "Bearer weak", 403, ""},
		"unknown org":            {"/orgs/nobody/hooks", auth, 404, ""},
	} {
		a := sendRequest(t, s, "GET", tc.path, tc.auth, nil)
		if a.code != tc.code || !strings.Contains(a.text, tc.has) || strings.Contains(a.text, hookSecret) || strings.Count(a.text, "https://a.example.com") > 1 {
			t.Errorf("%s: %d %s", name, a.code, a.text)
		}
	}
}
