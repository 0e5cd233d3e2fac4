// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// issuer signs tokens and serves its keys.
type issuer struct {
	t     *testing.T
	url   string
	key   atomic.Pointer[jose.JSONWebKey]
	asked atomic.Int32
	down  atomic.Bool
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()

	i := &issuer{t: t}
	i.rotate("first")

	listening := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.asked.Add(1)

		if i.down.Load() {
			http.Error(w, "down", http.StatusNotFound)

			return
		}

		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{i.key.Load().Public()}})
	}))
	t.Cleanup(listening.Close)

	i.url = listening.URL

	return i
}

func (i *issuer) rotate(id string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		i.t.Fatal(err)
	}

	i.key.Store(&jose.JSONWebKey{Key: key, KeyID: id, Algorithm: "ES256", Use: "sig"})
}

func (i *issuer) claims(subject string) map[string]any {
	return map[string]any{
		"iss": "https://issuer.example", "aud": "hyperfleet", "sub": subject, "exp": startTime().Add(time.Hour).Unix(),
	}
}

func (i *issuer) sign(claims map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.key.Load()}, nil)
	if err != nil {
		i.t.Fatal(err)
	}

	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		i.t.Fatal(err)
	}

	return token
}

func serveWithTokens(t *testing.T) (*api, *issuer) {
	t.Helper()

	from := newIssuer(t)

	return serve(t, func(o *server.Options) {
		o.Issuers = []platform.Issuer{{IssuerURL: "https://issuer.example", Audience: "hyperfleet", JWKCertURL: from.url}}
		o.Roles = []platform.RoleBinding{
			{Role: "admin", Values: []string{"root"}},
			{Role: "writer", Claim: "groups", Values: []string{"fleet"}},
			{Role: "reader", Claim: "groups", Values: []string{"viewers"}},
			{Role: "reader", Values: []string{"ada"}},
			{Role: "sentinel", Values: []string{"sentinel"}},
			{Role: "adapter", Values: []string{"adapter-dns"}, Adapters: []string{"dns"}},
			{Role: "adapter", Values: []string{"robot"}, AdapterClaim: "realm.adapter"},
		}
	}), from
}

func (a *api) withToken(token string) *api { return a.withHeader("Authorization", "Bearer "+token) }

func TestTokens(t *testing.T) {
	t.Parallel()

	a, from := serveWithTokens(t)

	got := a.do("GET", "/clusters", nil)
	requireProblem(t, got, "HYPERFLEET-AUT-001")

	if got.status != 401 || got.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("%d %s", got.status, got.header)
	}

	requireProblem(t, a.withHeader("Authorization", "Basic YTpi").do("GET", "/clusters", nil), "HYPERFLEET-AUT-001")
	as[openapi.ResourceList](t, a.withToken(from.sign(from.claims("ada"))).do("GET", "/clusters", nil), 200)

	other := newIssuer(t)
	unsigned, _, _ := strings.Cut(from.sign(from.claims("ada")), ".")
	shared, _ := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte(longText(32))}, nil)
	symmetric, _ := jwt.Signed(shared).Claims(from.claims("ada")).Serialize()

	for name, token := range map[string]string{
		"no JWT":                 "x",
		"an unsigned token":      unsigned,
		"a shared key":           symmetric,
		"no algorithm":           "eyJhbGciOiJub25lIn0.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwic3ViIjoiYWRhIn0.",
		"keys of another issuer": other.sign(from.claims("ada")),
		"expired":                from.sign(changedClaims(from, "exp", startTime().Add(-2*time.Minute).Unix())),
		"no expiry":              from.sign(changedClaims(from, "exp", nil)),
		"not yet":                from.sign(changedClaims(from, "nbf", startTime().Add(2*time.Minute).Unix())),
		"another issuer":         from.sign(changedClaims(from, "iss", "https://other.example")),
		"another audience":       from.sign(changedClaims(from, "aud", "other")),
		"without a subject":      from.sign(changedClaims(from, "sub", nil)),
		"a subject too long":     from.sign(changedClaims(from, "sub", longText(257))),
		"an empty subject":       from.sign(changedClaims(from, "sub", "")),
	} {
		got := a.withToken(token).do("GET", "/clusters", nil)
		if what := requireProblem(t, got, "HYPERFLEET-AUT-002"); got.status != 401 || strings.Contains(what.Detail, token) {
			t.Errorf("%s: %d %s", name, got.status, what.Detail)
		}
	}

	if strings.Contains(a.log.String(), symmetric) {
		t.Error("a token is in the log")
	}
}

func changedClaims(from *issuer, name string, value any) map[string]any {
	out := from.claims("ada")
	if out[name] = value; value == nil {
		delete(out, name)
	}

	return out
}

// TestKeysOfTheIssuer checks that keys are read again if a token has an unknown key, but not for
// every such token.
func TestKeysOfTheIssuer(t *testing.T) {
	t.Parallel()

	a, from := serveWithTokens(t)
	old := from.sign(from.claims("ada"))

	from.down.Store(true)
	requireProblem(t, a.withToken(old).do("GET", "/clusters", nil), "HYPERFLEET-SVC-101")

	before := from.asked.Load()
	requireProblem(t, a.withToken(old).do("GET", "/clusters", nil), "HYPERFLEET-SVC-101")

	if from.asked.Load() != before {
		t.Error("the keys were read again at once")
	}

	from.down.Store(false)
	a.clock.Step(11 * time.Second)
	as[openapi.ResourceList](t, a.withToken(old).do("GET", "/clusters", nil), 200)

	from.rotate("second")
	before = from.asked.Load()

	for range 3 {
		requireProblem(t, a.withToken(from.sign(from.claims("ada"))).do("GET", "/clusters", nil), "HYPERFLEET-AUT-002")
	}

	if from.asked.Load() != before {
		t.Error("invalid tokens make the server read the issuer's keys")
	}

	a.clock.Step(11 * time.Second)
	as[openapi.ResourceList](t, a.withToken(from.sign(from.claims("ada"))).do("GET", "/clusters", nil), 200)
	requireProblem(t, a.withToken(old).do("GET", "/clusters", nil), "HYPERFLEET-AUT-002")

	// If an issuer is unavailable, tokens with known keys are still accepted.
	from.down.Store(true)
	a.clock.Step(16 * time.Minute)
	as[openapi.ResourceList](t, a.withToken(from.sign(from.claims("ada"))).do("GET", "/clusters", nil), 200)
}

// TestRoles checks that each token has the permissions of its role and no others.
func TestRoles(t *testing.T) {
	t.Parallel()

	a, from := serveWithTokens(t)
	as := func(subject string, more map[string]any) *api {
		claims := from.claims(subject)
		maps.Copy(claims, more)

		return a.withToken(from.sign(claims))
	}
	callers := map[string]*api{
		"nobody": as("stranger", map[string]any{"groups": []string{"staff"}}), "reader": as("eve", map[string]any{"groups": "viewers"}),
		"writer": as("ada", map[string]any{"groups": []string{"staff", "fleet"}}), "sentinel": as("sentinel", nil),
		"adapter": as("adapter-dns", nil), "named": as("robot", map[string]any{"realm": map[string]any{"adapter": "dns"}}),
		"admin": as("root", nil),
	}
	cluster := callers["writer"].create("/clusters", "home", nil)
	at := "/clusters/" + cluster.Id
	report := a.statusReport("dns", 1, "True")

	for _, tc := range []struct {
		method, path string
		body         any
		may          string
	}{
		{"GET", at, nil, "reader writer sentinel adapter named admin"},
		{"GET", "/changes", nil, "reader writer sentinel adapter named admin"},
		{"GET", at + "/statuses", nil, "reader writer sentinel adapter named admin"},
		{"POST", "/clusters", `{}`, "writer admin"},
		{"POST", "/resources", `{}`, "writer admin"},
		{"POST", at + "/nodepools", `{}`, "writer admin"},
		{"PATCH", at, `{"spec":{}}`, "writer admin"},
		{"PUT", at + "/statuses", report, "adapter named"},
		{"PUT", "/leases/clusters", `{"holder":"h","ttl_seconds":5}`, "sentinel"},
		{"PUT", "/leases/adapter.dns", `{"holder":"h","ttl_seconds":5}`, "sentinel adapter named"},
		{"PUT", "/leases/adapter.namespace", `{"holder":"h","ttl_seconds":5}`, "sentinel"},
		{"POST", at + "/force-delete", `{"reason":"r"}`, "admin"},
		{"DELETE", at, nil, "writer admin"},
	} {
		for name, caller := range callers {
			got := caller.do(tc.method, tc.path, tc.body)
			if may := slices.Contains(strings.Fields(tc.may), name); may == (got.status == http.StatusForbidden) {
				t.Errorf("%s, %s %s: %d %s", name, tc.method, tc.path, got.status, got.body)
			} else if !may {
				requireProblem(t, got, "HYPERFLEET-AUZ-001")
			}
		}
	}
}

// TestAdaptersReportOnlyAsThemselves checks that an adapter can report only as itself, and that a person cannot
// report at all. Otherwise they could make a resource look reconciled or finalized.
func TestAdaptersReportOnlyAsThemselves(t *testing.T) {
	t.Parallel()

	a, from := serveWithTokens(t)
	token := func(subject string) *api { return a.withToken(from.sign(from.claims(subject))) }
	person, dns := token("root"), token("adapter-dns")
	cluster := person.create("/clusters", "home", nil)
	at := "/clusters/" + cluster.Id

	as[openapi.Resource](t, person.do("DELETE", at, nil), 202)

	for _, adapter := range []string{"dns", "namespace"} {
		report := a.statusReport(adapter, 2, "True", "Finalized")
		requireProblem(t, person.do("PUT", at+"/statuses", report), "HYPERFLEET-AUZ-001")
	}

	requireProblem(t, dns.do("PUT", at+"/statuses", a.statusReport("namespace", 2, "True", "Finalized")), "HYPERFLEET-AUZ-001")
	as[openapi.Resource](t, person.do("GET", at, nil), 200)
	as[openapi.AdapterStatus](t, dns.do("PUT", at+"/statuses", a.statusReport("dns", 2, "True", "Finalized")), 201)
}

// TestUnknownAdapters checks that reports of unknown adapters cannot fill the database.
func TestUnknownAdapters(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	at := "/clusters/" + a.create("/clusters", "home", nil).Id + "/statuses"

	what := requireProblem(t, a.do("PUT", at, a.statusReport("unknown", 1, "True")), "HYPERFLEET-VAL-001")
	if what.Errors[0].Field != "adapter" {
		t.Errorf("%+v", what)
	}

	large := a.statusReport("dns", 1, "True")
	large.Data = &openapi.Object{"x": longText(300 << 10)}
	requireProblem(t, a.do("PUT", at, large), "HYPERFLEET-VAL-104")

	if got := as[openapi.StatusList](t, a.do("GET", at, nil), 200); got.Total != 0 {
		t.Errorf("%+v", got)
	}
}

// TestWritesAreAudited checks that the log has the caller, the roles and the request of each write,
// including rejected ones.
func TestWritesAreAudited(t *testing.T) {
	t.Parallel()

	a, from := serveWithTokens(t)
	token := func(subject string) *api { return a.withToken(from.sign(from.claims(subject))) }
	person, dns, sentinel := token("root"), token("adapter-dns"), token("sentinel")
	cluster := person.create("/clusters", "home", nil)
	at := "/clusters/" + cluster.Id

	if cluster.CreatedBy != "root" || cluster.UpdatedBy != "root" {
		t.Errorf("%+v", cluster)
	}

	as[openapi.AdapterStatus](t, dns.do("PUT", at+"/statuses", a.statusReport("dns", 1, "True")), 201)
	as[struct{}](t, dns.do("PUT", at+"/statuses", a.statusReport("dns", 1, "Unknown")), 204)
	requireProblem(t, dns.do("DELETE", at, nil), "HYPERFLEET-AUZ-001")

	for range 3 {
		as[openapi.Lease](t, sentinel.do("PUT", "/leases/clusters", `{"holder":"h","ttl_seconds":5}`), 200)
	}

	as[openapi.Resource](t, person.do("GET", at, nil), 200)

	if deleted := as[openapi.Resource](t, person.do("DELETE", at, nil), 202); deleted.DeletedBy != "root" {
		t.Errorf("%+v", deleted)
	}

	as[struct{}](t, person.do("POST", at+"/force-delete", `{"reason":"r"}`), 204)

	if entries := a.audit(cluster.Id); len(entries) != 1 || entries[0].Actor != "root" {
		t.Errorf("%+v", entries)
	}

	var got []string

	for line := range strings.Lines(a.log.String()) {
		var one struct {
			Level, Msg, Method, Path, Caller string
			Roles                            []string
			Status                           int
		}
		must.Do(t, json.Unmarshal([]byte(line), &one))

		if one.Level == "INFO" && one.Msg == "request" {
			got = append(got, fmt.Sprint(one.Caller, one.Roles, " ", one.Method, " ", one.Status))
		}
	}

	want := []string{
		"root[admin] POST 201", "adapter-dns[adapter] PUT 201", "adapter-dns[adapter] DELETE 403",
		"sentinel[sentinel] PUT 200", "root[admin] DELETE 202", "root[admin] POST 204",
	}
	if !slices.Equal(got, want) {
		t.Errorf("audit log %q, want %q", got, want)
	}
}
