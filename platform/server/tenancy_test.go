// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/server"
)

// TestIssuers checks that tokens of several issuers are accepted, each with its own keys, header
// and claim, and that a claim of one issuer gives no role of another issuer.
func TestIssuers(t *testing.T) {
	t.Parallel()

	people, robots := newIssuer(t), newIssuer(t)
	a := serve(t, func(o *server.Options) {
		o.Issuers = []platform.Issuer{
			{IssuerURL: "https://issuer.example", Audience: "hyperfleet", JWKCertURL: people.url},
			{IssuerURL: "https://robots.example", JWKCertURL: robots.url, Header: "X-Robot", IdentityClaim: "client"},
		}
		o.Roles = []platform.RoleBinding{
			{Issuer: "https://issuer.example", Role: "writer", Values: []string{"ada"}},
			{Issuer: "https://robots.example", Role: "admin", Values: []string{"root"}},
			{Issuer: "https://robots.example", Role: "reader", Values: []string{"eve"}},
		}
	})
	robot := func(name string) string {
		return robots.sign(map[string]any{"iss": "https://robots.example", "client": name, "exp": people.claims("")["exp"]})
	}

	if made := a.withToken(people.sign(people.claims("ada"))).create("/clusters", "home", nil); made.CreatedBy != "ada" {
		t.Errorf("%+v", made)
	}

	for _, header := range []string{robot("root"), "Bearer " + robot("root")} {
		as[openapi.ResourceList](t, a.withHeader("X-Robot", header).do("GET", "/clusters", nil), 200)
	}

	requireProblem(t, a.withHeader("X-Robot", robot("eve")).do("POST", "/clusters", `{"name":"abc","spec":{}}`), "HYPERFLEET-AUZ-001")

	for name, tc := range map[string]struct{ header, token, code string }{
		"the other issuer's header": {"Authorization", "Bearer " + robot("root"), "HYPERFLEET-AUT-002"},
		"the other issuer's token":  {"X-Robot", people.sign(people.claims("ada")), "HYPERFLEET-AUT-002"},
		"the other issuer's keys":   {"X-Robot", people.sign(map[string]any{"iss": "https://robots.example", "client": "root", "exp": people.claims("")["exp"]}), "HYPERFLEET-AUT-002"},
		"the other issuer's role":   {"Authorization", "Bearer " + people.sign(people.claims("root")), "HYPERFLEET-AUZ-001"},
		"no word Bearer":            {"Authorization", people.sign(people.claims("ada")), "HYPERFLEET-AUT-001"},
		"another audience":          {"Authorization", "Bearer " + people.sign(changedClaims(people, "aud", "other")), "HYPERFLEET-AUT-002"},
	} {
		if what := requireProblem(t, a.withHeader(tc.header, tc.token).do("GET", "/clusters", nil), tc.code); strings.Contains(what.Detail, tc.token) {
			t.Errorf("%s: %s", name, what.Detail)
		}
	}
}

// TestTenancyByClaims checks that the token decides the tenant of a request, and that other
// tenants' resources do not appear in its lists, searches, reports, changes and references.
func TestTenancyByClaims(t *testing.T) {
	t.Parallel()

	from := newIssuer(t)
	a := serve(t, func(o *server.Options) {
		o.Issuers = []platform.Issuer{{IssuerURL: "https://issuer.example", Audience: "hyperfleet", JWKCertURL: from.url}}
		o.Tenant = platform.Tenant{Dimensions: []platform.Dimension{{Key: "organization", Claim: "org.id", Required: true}}}
		o.Roles = []platform.RoleBinding{
			{Role: "admin", Values: []string{"ada", "eve", "nobody", "many"}},
			{Role: "reader", Values: []string{"sweep", "eve"}, AllTenants: true},
			{Role: "adapter", Values: []string{"dns"}, Adapters: []string{"dns"}, AllTenants: true},
		}
	})
	newCaller := func(name string, org any) *api {
		return a.withToken(from.sign(map[string]any{
			"iss": "https://issuer.example", "aud": "hyperfleet", "sub": name, "exp": from.claims("")["exp"], "org": map[string]any{"id": org},
		}))
	}
	one, two, all := newCaller("ada", "one"), newCaller("eve", "two"), newCaller("sweep", nil)

	for name, org := range map[string]any{"nobody": nil, "many": []string{"one", "two"}, "empty": ""} {
		requireProblem(t, newCaller(name, org).do("GET", "/resources", nil), "HYPERFLEET-AUZ-001")
	}

	before := as[openapi.ChangeList](t, one.do("GET", "/changes", nil), 200).Next
	cluster := one.create("/clusters", "home", nil)
	other := two.create("/clusters", "home", nil)
	// The header for the other way to name a tenant is ignored.
	as[openapi.Resource](t, one.withHeader("X-HyperFleet-System", "true").do("GET", "/clusters/"+cluster.Id, nil), 200)

	if cluster.Tenancy["organization"] != "one" || other.Tenancy["organization"] != "two" {
		t.Errorf("%+v %+v", cluster, other)
	}

	for _, tc := range []struct {
		caller *api
		want   int
	}{{one, 1}, {two, 1}, {all, 2}} {
		for _, path := range []string{"/clusters", "/resources?search=name='home'", "/clusters?search=tenancy.organization!='x'"} {
			if got := as[openapi.ResourceList](t, tc.caller.do("GET", path, nil), 200); got.Total != tc.want {
				t.Errorf("%s: %d resources, want %d", path, got.Total, tc.want)
			}
		}

		if got := as[openapi.ChangeList](t, tc.caller.do("GET", "/changes?after="+before, nil), 200); len(got.Items) != tc.want {
			t.Errorf("%d changes, want %d", len(got.Items), tc.want)
		}
	}

	at := "/clusters/" + cluster.Id
	for _, request := range []struct {
		method, path string
		body         any
	}{
		{"GET", at, nil}, {"PATCH", at, `{"spec":{}}`}, {"DELETE", at, nil}, {"GET", at + "/statuses", nil},
		{"POST", at + "/nodepools", `{"name":"abc","spec":{}}`}, {"POST", at + "/force-delete", `{"reason":"r"}`},
	} {
		requireProblem(t, two.do(request.method, request.path, request.body), "HYPERFLEET-NTF-001")
	}

	as[openapi.AdapterStatus](t, newCaller("dns", nil).do("PUT", at+"/statuses", a.statusReport("dns", 1, "True")), http.StatusCreated)

	if got, alone := two.do("GET", at, nil), all.do("GET", at, nil); got.header.Get(openapi.HeaderTenant) == "" ||
		alone.header.Get(openapi.HeaderTenant) != "" {
		t.Errorf("only responses for one tenant must have the tenant header: %v, %v", got.header, alone.header)
	}

	// A reference to another tenant's resource is rejected like one to a missing resource.
	// Otherwise it could prevent the deletion of that resource.
	channel, foreign := one.create("/channels", "stable", nil), two.create("/channels", "stable", nil)
	refer := func(id, name string) string {
		return fmt.Sprintf(`{%s"spec":{},"references":{"channel":[{"id":%q}]}}`, name, id)
	}
	version := as[openapi.Resource](t, one.do("POST", "/versions", refer(channel.Id, `"name":"v1",`)), http.StatusCreated)

	for _, request := range [][3]string{
		{"POST", "/versions", refer(foreign.Id, `"name":"v2",`)}, {"PATCH", "/versions/" + version.Id, refer(foreign.Id, "")},
	} {
		got := one.do(request[0], request[1], request[2])
		if what := requireProblem(t, got, "HYPERFLEET-VAL-001"); !strings.Contains(string(got.body), "no such resource") {
			t.Errorf("%+v", what)
		}
	}
}

// TestTenancyByHeaders checks that a request with tenancy headers sees only the resources of that
// tenant.
func TestTenancyByHeaders(t *testing.T) {
	t.Parallel()

	a := serve(t, func(o *server.Options) {
		o.Tenant = platform.Tenant{SystemHeader: "X-HyperFleet-System", Dimensions: []platform.Dimension{
			{Key: "organization", Header: "X-HyperFleet-Organization", Required: true},
			{Key: "project", Header: "X-HyperFleet-Project"},
		}}
	})
	requireProblem(t, a.do("GET", "/resources", nil), "HYPERFLEET-AUZ-001")
	one, two := a.withHeader("X-HyperFleet-Organization", "one"), a.withHeader("X-HyperFleet-Organization", "two")
	a = a.withHeader("X-HyperFleet-System", "true")
	cluster := one.create("/clusters", "home", nil)
	two.create("/clusters", "home", nil)

	if cluster.Tenancy["organization"] != "one" {
		t.Errorf("%+v", cluster)
	}

	// A request that names more dimensions sees fewer resources.
	if got := as[openapi.ResourceList](t, one.withHeader("X-HyperFleet-Project", "p").do("GET", "/resources", nil), 200); got.Total != 0 {
		t.Errorf("%d resources of another project are visible", got.Total)
	}

	// A child that is created without the header also belongs to the tenant.
	pool := a.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)
	as[openapi.Resource](t, one.do("GET", "/nodepools/"+pool.Id, nil), 200)

	for _, tc := range []struct {
		caller *api
		want   int
	}{{one, 2}, {two, 1}, {a, 3}} {
		if got := as[openapi.ResourceList](t, tc.caller.do("GET", "/resources", nil), 200); got.Total != tc.want {
			t.Errorf("%d resources, want %d", got.Total, tc.want)
		}
	}

	requireProblem(t, two.do("PUT", "/clusters/"+cluster.Id+"/statuses", a.statusReport("dns", 1, "True")), "HYPERFLEET-NTF-001")
}
