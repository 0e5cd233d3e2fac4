// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package registry_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/registry"
	"github.com/hyperfleet/hyperfleet/sim/registry/registrytest"
)

const repository = "openshift-release-dev/ocp-release"

// client is a plain client that trusts the registry.
type client struct {
	t      *testing.T
	server *registrytest.Server
	http   *http.Client
}

func newClient(t *testing.T, options registry.Options) *client {
	t.Helper()

	server := registrytest.New(t, options)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.CA)

	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	t.Cleanup(transport.CloseIdleConnections)

	return &client{t: t, server: server, http: &http.Client{Transport: transport}}
}

func (c *client) do(method, path string, set func(*http.Request)) *http.Response {
	c.t.Helper()

	r, err := http.NewRequestWithContext(c.t.Context(), method, "https://"+c.server.Host+path, http.NoBody)
	if err != nil {
		c.t.Fatal(err)
	}

	r.Header.Set("Accept", registry.IndexType)

	if set != nil {
		set(r)
	}

	response, err := c.http.Do(r)
	if err != nil {
		c.t.Fatal(err)
	}

	c.t.Cleanup(func() { _ = response.Body.Close() })

	return response
}

func (c *client) head(reference string, set func(*http.Request)) *http.Response {
	c.t.Helper()

	return c.do(http.MethodHead, "/v2/"+repository+"/manifests/"+reference, set)
}

func setBearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

// getToken requests the token of a challenge.
func (c *client) getToken(challenge, user, password string) (string, int) {
	c.t.Helper()

	values := url.Values{}

	for _, field := range []string{"service", "scope"} {
		if found := regexp.MustCompile(field + `="([^"]*)"`).FindStringSubmatch(challenge); found != nil {
			values.Set(field, found[1])
		}
	}

	response := c.do(http.MethodGet, "/auth/token?"+values.Encode(), func(r *http.Request) {
		if user != "" {
			r.SetBasicAuth(user, password)
		}
	})

	var answer struct{ Token string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		c.t.Fatal(err)
	}

	return answer.Token, response.StatusCode
}

func TestTokens(t *testing.T) {
	clock := testclock.NewFakeClock(time.Unix(1_700_000_000, 0))
	c := newClient(t, registry.Options{Users: map[string]string{"reader": "secret"}, TokenLifetime: time.Minute, Clock: clock})
	digest := c.server.Push(repository, "4.15.0-x86_64")

	challenged := c.head("4.15.0-x86_64", nil)
	challenge := challenged.Header.Get("WWW-Authenticate")

	if challenged.StatusCode != http.StatusUnauthorized || !strings.Contains(challenge, `scope="repository:`+repository+`:pull"`) {
		t.Fatalf("no challenge but %s %q", challenged.Status, challenge)
	}

	if _, status := c.getToken(challenge, "reader", "wrong"); status != http.StatusUnauthorized {
		t.Errorf("the status of a wrong password is %d", status)
	}

	anonymous, _ := c.getToken(challenge, "", "")
	good, _ := c.getToken(challenge, "reader", "secret")
	other, _ := c.getToken(strings.ReplaceAll(challenge, "ocp-release", "other"), "reader", "secret")

	tests := map[string]struct {
		token, reference string
		want             int
	}{
		"by tag":                      {good, "4.15.0-x86_64", http.StatusOK},
		"by digest":                   {good, digest, http.StatusOK},
		"unknown tag":                 {good, "4.99.0-x86_64", http.StatusNotFound},
		"unknown digest":              {good, "sha256:" + strings.Repeat("0", 64), http.StatusNotFound},
		"anonymous token":             {anonymous, digest, http.StatusUnauthorized},
		"token of another repository": {other, digest, http.StatusUnauthorized},
		"invalid token":               {"made-up", digest, http.StatusUnauthorized},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			response := c.head(test.reference, setBearer(test.token))
			if response.StatusCode != test.want {
				t.Errorf("got %s, want %d", response.Status, test.want)
			}

			if test.want == http.StatusOK && response.Header.Get("Docker-Content-Digest") != digest {
				t.Errorf("digest is %q, want %q", response.Header.Get("Docker-Content-Digest"), digest)
			}
		})
	}

	clock.Step(2 * time.Minute)

	if response := c.head(digest, setBearer(good)); response.StatusCode != http.StatusUnauthorized {
		t.Errorf("the status of an expired token is %s", response.Status)
	}
}

func TestWithoutTokens(t *testing.T) {
	open := newClient(t, registry.Options{})
	open.server.Push(repository, "4.15.0")

	if response := open.head("4.15.0", nil); response.StatusCode != http.StatusOK {
		t.Errorf("the status of a registry without tokens is %s", response.Status)
	}

	if response := open.head("4.15.0", func(r *http.Request) { r.Header.Del("Accept") }); response.StatusCode != http.StatusNotFound {
		t.Errorf("the status for a client that does not accept lists is %s", response.Status)
	}

	basic := newClient(t, registry.Options{Users: map[string]string{"reader": "secret"}, Basic: true})
	basic.server.Push(repository, "4.15.0")

	for password, want := range map[string]int{"secret": http.StatusOK, "wrong": http.StatusUnauthorized} {
		response := basic.head("4.15.0", func(r *http.Request) { r.SetBasicAuth("reader", password) })
		if response.StatusCode != want {
			t.Errorf("password %s: %s, want %d", password, response.Status, want)
		}
	}
}

func TestFaults(t *testing.T) {
	c := newClient(t, registry.Options{})
	c.server.Push(repository, "4.15.0")
	c.server.SetFault(&registry.Fault{Status: http.StatusServiceUnavailable, Delay: time.Millisecond, Count: 2})

	var got []int
	for range 3 {
		got = append(got, c.head("4.15.0", nil).StatusCode)
	}

	if got[0] != http.StatusServiceUnavailable || got[1] != http.StatusServiceUnavailable || got[2] != http.StatusOK {
		t.Errorf("got %v", got)
	}

	if calls := c.server.Calls()["HEAD /v2/"+repository+"/manifests/4.15.0"]; calls != 3 {
		t.Errorf("counted %d calls", calls)
	}
}

// TestStrict checks that requests that no client of a registry makes are violations.
func TestStrict(t *testing.T) {
	server := registry.New(registry.Options{Users: map[string]string{"a": "b"}})

	for _, call := range [][2]string{
		{http.MethodPut, "/v2/" + repository + "/manifests/1.0"}, {http.MethodGet, "/v2/_catalog"}, {http.MethodGet, "/"},
		{http.MethodGet, "/auth/token?service=other"},
	} {
		answer := httptest.NewRecorder()
		server.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), call[0], call[1], http.NoBody))

		if answer.Code != http.StatusNotImplemented {
			t.Errorf("%v: status %d", call, answer.Code)
		}
	}

	if got := len(server.Violations()); got != 4 {
		t.Errorf("%d violations, want 4", got)
	}
}
