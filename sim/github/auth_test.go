// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bradleyfalzon/ghinstallation/v2"
	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

const (
	appID     = 4711
	installID = 50000001
)

func newKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	requireNoError(t, err)
	return key
}

func encodePEM(key *rsa.PrivateKey) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
}

func newApp(key *rsa.PrivateKey, permissions map[string]string, repos ...string) *github.App {
	return &github.App{ID: appID, ClientID: "Iv23", PublicKey: &key.PublicKey, Installations: []github.Installation{
		{ID: installID, Account: "octo-org", Permissions: permissions, Repos: repos},
	}}
}

func listRunnerPermissions() map[string]string {
	return map[string]string{"administration": "write", "organization_self_hosted_runners": "write", "actions": "read"}
}

// newAppClients returns clients that authenticate like ghinstallation.
func newAppClients(t *testing.T, s *githubtest.Server, key *rsa.PrivateKey) (asApp, asInstallation *gh.Client) {
	t.Helper()
	apps, err := ghinstallation.NewAppsTransport(http.DefaultTransport, appID, encodePEM(key))
	requireNoError(t, err)
	apps.BaseURL = s.URL
	install := ghinstallation.NewFromAppsTransport(apps, installID)
	base := s.URL + "/"
	asApp, err = gh.NewClient(gh.WithTransport(apps), gh.WithURLs(&base, &base))
	requireNoError(t, err)
	asInstallation, err = gh.NewClient(gh.WithTransport(install), gh.WithURLs(&base, &base))
	requireNoError(t, err)
	return asApp, asInstallation
}

func TestAppThroughGhinstallation(t *testing.T) {
	key := newKey(t)
	s := githubtest.New(t, github.Options{App: newApp(key, listRunnerPermissions())})
	asApp, asInstallation := newAppClients(t, s, key)
	_, _, err := asInstallation.Actions.GenerateRepoJITConfig(t.Context(), "octo-org", "octo-repo",
		&gh.GenerateJITConfigRequest{Name: "vm", RunnerGroupID: 1, Labels: []string{"x"}})
	requireNoError(t, err)
	runners, _, err := asInstallation.Actions.ListRunners(t.Context(), "octo-org", "octo-repo", nil)
	requireNoError(t, err)
	if runners.TotalCount != 1 {
		t.Errorf("runners: %+v", runners)
	}
	me, _, err := asApp.Apps.Get(t.Context(), "")
	requireNoError(t, err)
	list, _, err := asApp.Apps.ListInstallations(t.Context(), nil)
	requireNoError(t, err)
	one, _, err := asApp.Apps.GetInstallation(t.Context(), installID)
	requireNoError(t, err)
	ofOrg, _, err := asApp.Apps.GetOrganizationInstallation(t.Context(), "octo-org")
	requireNoError(t, err)
	ofRepo, _, err := asApp.Apps.GetRepositoryInstallation(t.Context(), "octo-org", "octo-repo")
	requireNoError(t, err)
	if me.GetID() != appID || len(list) != 1 || one.GetID() != installID || ofOrg.GetID() != installID || ofRepo.GetID() != installID {
		t.Errorf("App %v, installations %v %v %v %v", me, list, one, ofOrg, ofRepo)
	}
	limits, _, err := asInstallation.RateLimit.Get(t.Context())
	requireNoError(t, err)
	if limits.Core.Limit != 5000 || limits.Core.Used != 2 {
		t.Errorf("limits: %+v", limits.Core)
	}
}

func TestAppJWT(t *testing.T) {
	key, other := newKey(t), newKey(t)
	clk := newFakeClock()
	now := clk.Now()
	s := githubtest.New(t, github.Options{Clock: clk, App: newApp(key, listRunnerPermissions())})
	at := func(d time.Duration) json.Number { return json.Number(strconv.FormatInt(now.Add(d).Unix(), 10)) }
	good := protocol.Claims{Issuer: json.RawMessage(`"4711"`), IssuedAt: at(-time.Minute), ExpiresAt: at(9 * time.Minute)}
	cases := map[string]struct {
		key     *rsa.PrivateKey
		change  func(*protocol.Claims)
		message string
	}{
		"good":                    {key, func(*protocol.Claims) {}, ""},
		"issuer as number":        {key, func(c *protocol.Claims) { c.Issuer = json.RawMessage("4711") }, ""},
		"issuer as client id":     {key, func(c *protocol.Claims) { c.Issuer = json.RawMessage(`"Iv23"`) }, ""},
		"other issuer":            {key, func(c *protocol.Claims) { c.Issuer = json.RawMessage("12") }, "'Issuer' claim"},
		"other key":               {other, func(*protocol.Claims) {}, "could not be decoded"},
		"expired":                 {key, func(c *protocol.Claims) { c.ExpiresAt = at(-2 * time.Minute) }, "'Expiration time' claim"},
		"no expiry":               {key, func(c *protocol.Claims) { c.ExpiresAt = "" }, "'Expiration time' claim"},
		"expires in twelve":       {key, func(c *protocol.Claims) { c.ExpiresAt = at(12 * time.Minute) }, "too far in the future"},
		"issued in the future":    {key, func(c *protocol.Claims) { c.IssuedAt = at(5 * time.Minute) }, "'Issued at' claim"},
		"within a minute's drift": {key, func(c *protocol.Claims) { c.IssuedAt = at(30 * time.Second) }, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claims := good
			tc.change(&claims)
			token, err := protocol.Sign(tc.key, claims)
			requireNoError(t, err)
			a := sendRequest(t, s, "GET", "/app", "Bearer "+token, nil)
			message, _ := a.body["message"].(string)
			want := http.StatusOK
			if tc.message != "" {
				want = http.StatusUnauthorized
			}
			if a.code != want || !strings.Contains(message, tc.message) {
				t.Errorf("got %d %s, want %d %q", a.code, a.text, want, tc.message)
			}
		})
	}
	token, err := protocol.Sign(key, good)
	requireNoError(t, err)
	if a := sendRequest(t, s, "GET", repoRunnerAccess, "Bearer "+token, nil); a.code != http.StatusUnauthorized {
		t.Errorf("the status of a repository call with a JWT is %d %s", a.code, a.text)
	}
}

func TestInstallationTokens(t *testing.T) {
	key, clk := newKey(t), newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk, App: newApp(key, listRunnerPermissions(), "octo-org/octo-repo"), Repos: []github.Repo{
		{FullName: githubtest.Repo, Private: true}, {FullName: "octo-org/second", Private: true}, {FullName: "else/where", Private: true},
	}})
	jwt := func() string { return "Bearer " + newAppJWT(t, key, clk.Now()) }
	path := "/app/installations/50000001/access_tokens"
	mint := func(t *testing.T, body any) response {
		t.Helper()
		return sendRequest(t, s, "POST", path, jwt(), body)
	}
	t.Run("selected repositories only", func(t *testing.T) {
		token, _ := mint(t, nil).body["token"].(string)
		for repo, want := range map[string]int{"octo-org/octo-repo": 200, "octo-org/second": 404, "else/where": 404} {
			if a := sendRequest(t, s, "GET", "/repos/"+repo+"/actions/runners", "token "+token, nil); a.code != want {
				t.Errorf("%s: %d %s, want %d", repo, a.code, a.text, want)
			}
		}
		if a := sendRequest(t, s, "GET", "/orgs/else/actions/runners", "token "+token, nil); a.code != 404 {
			t.Errorf("another organisation: %d", a.code)
		}
	})
	t.Run("narrowed permissions", func(t *testing.T) {
		token, _ := mint(t, map[string]any{"permissions": map[string]string{"administration": "read"}}).body["token"].(string)
		if a := sendRequest(t, s, "GET", repoRunnerAccess, "Bearer "+token, nil); a.code != 200 {
			t.Errorf("read: %d %s", a.code, a.text)
		}
		a := sendRequest(t, s, "POST", repoRunnerAccess+"/registration-token", "Bearer "+token, nil)
		if a.code != 403 || a.body["message"] != "Resource not accessible by integration" {
			t.Errorf("write: %d %s", a.code, a.text)
		}
		if got := a.header.Get("X-Accepted-Github-Permissions"); got != "administration=write" {
			t.Errorf("X-Accepted-GitHub-Permissions: %q", got)
		}
	})
	t.Run("more than granted", func(t *testing.T) {
		if a := mint(t, map[string]any{"permissions": map[string]string{"actions": "write"}}); a.code != 422 {
			t.Errorf("%d %s", a.code, a.text)
		}
		if a := mint(t, map[string]any{"repositories": []string{"second"}}); a.code != 422 {
			t.Errorf("%d %s", a.code, a.text)
		}
	})
	t.Run("one hour", func(t *testing.T) {
		token, _ := mint(t, nil).body["token"].(string)
		clk.Step(time.Hour - time.Second)
		if a := sendRequest(t, s, "GET", repoRunnerAccess, "Bearer "+token, nil); a.code != 200 {
			t.Errorf("before the hour: %d %s", a.code, a.text)
		}
		clk.Step(time.Second)
		if a := sendRequest(t, s, "GET", repoRunnerAccess, "Bearer "+token, nil); a.code != 401 {
			t.Errorf("after the hour: %d %s", a.code, a.text)
		}
	})
	t.Run("unknown installation", func(t *testing.T) {
		if a := sendRequest(t, s, "POST", "/app/installations/1/access_tokens", jwt(), nil); a.code != 404 {
			t.Errorf("%d %s", a.code, a.text)
		}
	})
}

func TestScopesOfTokens(t *testing.T) {
	repos := []github.Repo{
		{FullName: "octo-org/octo-repo", Private: true}, {FullName: "octo-org/open"}, {FullName: "person/own", Private: true, UserOwned: true},
	}
	cases := map[string]struct {
		pat  github.PAT
		path string
		code int
		text string
	}{
		"classic repo":                {github.PAT{Scopes: []string{"repo"}}, "/repos/octo-org/octo-repo", 200, ""},
		"classic none, private":       {github.PAT{Scopes: []string{"gist"}}, "/repos/octo-org/octo-repo", 404, "Not Found"},
		"classic none, public":        {github.PAT{}, "/repos/octo-org/open", 403, "Must have admin rights to Repository."},
		"classic repo at org":         {github.PAT{Scopes: []string{"repo"}}, "/orgs/octo-org", 403, "Must have admin rights to Repository."},
		"classic admin:org":           {github.PAT{Scopes: []string{"admin:org"}}, "/orgs/octo-org", 200, ""},
		"the seed's invented scope":   {github.PAT{Scopes: []string{"repo:actions", "org:actions"}}, "/orgs/octo-org", 403, "Must have admin rights"},
		"user is no organisation":     {github.PAT{Scopes: []string{"admin:org"}}, "/orgs/person", 404, "Not Found"},
		"user's repository":           {github.PAT{Scopes: []string{"repo"}}, "/repos/person/own", 200, ""},
		"enterprise hidden":           {github.PAT{Scopes: []string{"repo"}}, "/enterprises/octo", 404, "Not Found"},
		"enterprise":                  {github.PAT{Scopes: []string{"manage_runners:enterprise"}}, "/enterprises/octo", 200, ""},
		"fine-grained":                {github.PAT{Permissions: map[string]string{"administration": "read"}}, "/repos/octo-org/octo-repo", 200, ""},
		"fine-grained, actions only":  {github.PAT{Permissions: map[string]string{"actions": "write"}}, "/repos/octo-org/octo-repo", 403, "Resource not accessible by personal access token"},
		"fine-grained, other repo":    {github.PAT{Permissions: map[string]string{"administration": "write"}, Repos: []string{"octo-org/open"}}, "/repos/octo-org/octo-repo", 404, "Not Found"},
		"fine-grained, org":           {github.PAT{Permissions: map[string]string{"organization_self_hosted_runners": "read"}}, "/orgs/octo-org", 200, ""},
		"fine-grained, org forgotten": {github.PAT{Permissions: map[string]string{"administration": "write"}}, "/orgs/octo-org", 403, "Resource not accessible by personal access token"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.pat.Token = "secret"
			s := githubtest.New(t, github.Options{Repos: repos, Enterprise: "octo", PATs: []github.PAT{tc.pat}})
			a := sendRequest(t, s, "GET", tc.path+"/actions/runners", "Bearer secret", nil)
			message, _ := a.body["message"].(string)
			if a.code != tc.code || !strings.Contains(message, tc.text) {
				t.Errorf("got %d %s, want %d %q", a.code, a.text, tc.code, tc.text)
			}
		})
	}
}

func TestRateLimit(t *testing.T) {
	clk := newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk, RateLimit: 2})
	for want := 1; want >= 0; want-- {
		a := sendRequest(t, s, "GET", repoRunnerAccess, auth, nil)
		if a.code != 200 || a.header.Get("X-Ratelimit-Remaining") != strconv.Itoa(want) || a.header.Get("X-Ratelimit-Limit") != "2" {
			t.Errorf("got %d %v", a.code, a.header)
		}
	}
	_, _, err := newClient(t, s.URL, githubtest.PAT).Actions.ListRunners(t.Context(), "octo-org", "octo-repo", nil)
	var rejection *gh.RateLimitError
	if !errors.As(err, &rejection) || rejection.Rate.Remaining != 0 || !rejection.Rate.Reset.Equal(gh.Timestamp{Time: clk.Now().Add(time.Hour)}) {
		t.Fatalf("third call: %v", err)
	}
	if a := sendRequest(t, s, "GET", "/rate_limit", auth, nil); a.code != 200 {
		t.Errorf("/rate_limit counts against the limit: %d", a.code)
	}
	clk.Step(time.Hour)
	if a := sendRequest(t, s, "GET", repoRunnerAccess, auth, nil); a.code != 200 || a.header.Get("X-Ratelimit-Used") != "1" {
		t.Errorf("after the reset: %d %v", a.code, a.header)
	}
}

func TestCallFaults(t *testing.T) {
	s := githubtest.New(t, github.Options{Faults: control.Faults{SecondaryRateLimit: 1, RetryAfter: 90 * time.Second}})
	_, _, err := newClient(t, s.URL, githubtest.PAT).Actions.ListRunners(t.Context(), "octo-org", "octo-repo", nil)
	var abuse *gh.AbuseRateLimitError
	if !errors.As(err, &abuse) || abuse.GetRetryAfter() != 90*time.Second {
		t.Errorf("secondary limit: %v", err)
	}
	requireNoError(t, s.SetFaults(control.Faults{RateLimit: 1}))
	_, _, err = newClient(t, s.URL, githubtest.PAT).Actions.ListRunners(t.Context(), "octo-org", "octo-repo", nil)
	var rejection *gh.RateLimitError
	if !errors.As(err, &rejection) {
		t.Errorf("primary limit: %v", err)
	}
	requireNoError(t, s.SetFaults(control.Faults{ServerError: 1}))
	if a := sendRequest(t, s, "GET", repoRunnerAccess, auth, nil); a.code != 502 {
		t.Errorf("server error: %d", a.code)
	}
	for _, invalid := range []control.Faults{{RateLimit: 1.5}, {WebhookLost: -1}, {JITDelay: -1}} {
		if err := s.SetFaults(invalid); err == nil {
			t.Errorf("faults %+v were accepted", invalid)
		}
	}
}

func TestSlowJITConfig(t *testing.T) {
	clk := newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk, Faults: control.Faults{JITDelay: 10 * time.Second}})
	done := make(chan int, 1)
	waiters := 2 // the deadline loop and the webhook sender
	go func() {
		done <- sendRequest(t, s, "POST", repoRunnerAccess+"/generate-jitconfig", auth, newJITBody("slow", "x")).code
	}()
	s.WaitUntil("the call waits", func(st control.State) bool { return len(st.Requests) == 1 && clk.Waiters() > waiters })
	select {
	case code := <-done:
		t.Fatalf("status %d without a delay", code)
	default:
	}
	clk.Step(10 * time.Second)
	if code := <-done; code != 201 {
		t.Errorf("status %d", code)
	}
}

// newAppJWT returns a JWT of the App that is valid for a few minutes.
func newAppJWT(t *testing.T, key *rsa.PrivateKey, now time.Time) string {
	t.Helper()
	token, err := protocol.Sign(key, protocol.Claims{
		Issuer: json.RawMessage("4711"), IssuedAt: json.Number(strconv.FormatInt(now.Unix(), 10)),
		ExpiresAt: json.Number(strconv.FormatInt(now.Add(5*time.Minute).Unix(), 10)),
	})
	requireNoError(t, err)
	return token
}
