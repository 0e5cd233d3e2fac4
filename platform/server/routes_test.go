// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

func TestResource(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", map[string]any{
		"spec": map[string]any{"region": "eu", "nodes": []any{1, 2}}, "labels": map[string]string{"a.b/c": "d"},
	})
	pool := a.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)

	if cluster.Href != "/api/hyperfleet/v1/clusters/"+cluster.Id || cluster.OwnerReferences != nil || len(cluster.Id) != 36 {
		t.Errorf("%+v", cluster)
	}

	want := openapi.Resource{
		CreatedTime: startTime(), UpdatedTime: startTime(), CreatedBy: "anonymous", UpdatedBy: "anonymous", Generation: 1, Id: pool.Id, Kind: "NodePool", Name: "workers",
		Href: "/api/hyperfleet/v1/clusters/" + cluster.Id + "/nodepools/" + pool.Id,
		OwnerReferences: &openapi.ResourceReference{
			Id: cluster.Id, Kind: "Cluster", Href: "/api/hyperfleet/v1/clusters/" + cluster.Id,
		},
		Spec: map[string]any{}, Etag: pool.Etag,
		Status: openapi.ResourceStatus{Conditions: []openapi.ResourceCondition{
			{
				Type: "LastKnownReconciled", Status: "False", Reason: "NeverReconciled",
				Message:     "the required adapters have not all been available at one generation",
				CreatedTime: startTime(), LastUpdatedTime: startTime(), LastTransitionTime: startTime(),
			},
			{
				Type: "Reconciled", Status: "False", Reason: "ReconciledMissingAdapters",
				Message:     "no report on generation 1 from machines",
				CreatedTime: startTime(), LastUpdatedTime: startTime(), LastTransitionTime: startTime(),
			},
		}},
	}

	for _, path := range []string{want.Href, "/api/hyperfleet/v1/nodepools/" + pool.Id, "/api/hyperfleet/v1/resources/" + pool.Id} {
		got := as[openapi.Resource](t, a.do("GET", path[len("/api/hyperfleet/v1"):], nil), 200)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)

	for _, name := range []string{"one", "two", "three"} {
		a.create("/clusters", name, map[string]any{"labels": map[string]string{"first": name[:1]}, "spec": map[string]any{"n": name}})
		a.clock.Step(1e9)
	}

	channel := a.create("/channels", "stable", nil)
	version := a.create("/versions", "v1", map[string]any{"references": map[string]any{"channel": []any{map[string]any{"id": channel.Id}}}})

	for _, tc := range []struct {
		name, path string
		want       []string
		total      int
	}{
		{"newest first", "/clusters", []string{"three", "two", "one"}, 3},
		{"a page", "/clusters?order=name+asc&size=2&page=2", []string{"two"}, 3},
		{"a page at an offset", "/clusters?order=name+asc&size=2&offset=1", []string{"three", "two"}, 3},
		{"by label", "/clusters?order=name&search=labels.first%3D%27t%27", []string{"three", "two"}, 2},
		{"all of one kind", "/resources?kind=Version", []string{"v1"}, 1},
		{"by reference", "/versions?ref_type=channel&ref_target_id=" + channel.Id, []string{"v1"}, 1},
		{"by another reference", "/versions?ref_type=channel&ref_target_id=" + version.Id, nil, 0},
	} {
		got := as[openapi.ResourceList](t, a.do("GET", tc.path, nil), 200)

		var names []string
		for _, one := range got.Items {
			names = append(names, one.Name)
		}

		if diff := cmp.Diff(tc.want, names); diff != "" || got.Total != tc.total || got.Size != len(tc.want) {
			t.Errorf("%s: %s (%d of %d)", tc.name, diff, got.Size, got.Total)
		}
	}

	parts := as[map[string]any](t, a.do("GET", "/clusters?fields=name,status.conditions.type,spec.n,spec&order=name&size=1", nil), 200)
	one := a.get(as[openapi.ResourceList](t, a.do("GET", "/clusters?order=name&size=1", nil), 200).Items[0])
	want := []any{map[string]any{
		"id": one.Id, "name": "one", "spec": map[string]any{"n": "one"},
		"status": map[string]any{"conditions": []any{
			map[string]any{"type": "LastKnownReconciled"}, map[string]any{"type": "Reconciled"},
		}},
	}}

	if diff := cmp.Diff(want, parts["items"]); diff != "" {
		t.Errorf("fields: %s", diff)
	}

	deleting := as[openapi.Resource](t, a.do("DELETE", "/clusters/"+one.Id, nil), 202)
	if got := as[openapi.ResourceList](t, a.do("GET", "/clusters", nil), 200); got.Total != 3 {
		t.Errorf("a deleting resource is not listed: %s is missing", deleting.Name)
	}
}

// TestProblems has a case for every code that a single request can cause.
func TestProblems(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)
	pool := a.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)
	other := a.create("/clusters", "other", nil)
	channel := a.create("/channels", "stable", nil)
	at := "/clusters/" + cluster.Id
	missing := "0198c0de-0000-7000-8000-000000000000"
	large := `{"name":"x","spec":{"a":"` + longText(2<<20) + `"}}`

	for _, tc := range []struct {
		name, method, path string
		body               any
		status             int
		code               string
		field              string
	}{
		{"no such route", "GET", "/", nil, 404, "HYPERFLEET-NTF-000", ""},
		{"unknown kind in the path", "GET", "/dragons", nil, 404, "HYPERFLEET-NTF-000", ""},
		{"unknown child kind", "GET", at + "/dragons", nil, 404, "HYPERFLEET-NTF-000", ""},
		{"a kind that is no child", "GET", at + "/channels", nil, 404, "HYPERFLEET-NTF-000", ""},
		{"too deep", "GET", at + "/nodepools/" + pool.Id + "/statuses/x", nil, 404, "HYPERFLEET-NTF-000", ""},
		{"a path that ends in a slash", "GET", "/clusters/", nil, 404, "HYPERFLEET-NTF-000", ""},
		{"no such resource", "GET", "/clusters/" + missing, nil, 404, "HYPERFLEET-NTF-001", ""},
		{"of another kind", "GET", "/channels/" + cluster.Id, nil, 404, "HYPERFLEET-NTF-001", ""},
		{"of another parent", "GET", "/clusters/" + other.Id + "/nodepools/" + pool.Id, nil, 404, "HYPERFLEET-NTF-001", ""},
		{"a list below a missing parent", "GET", "/clusters/" + missing + "/nodepools", nil, 404, "HYPERFLEET-NTF-001", ""},
		{"statuses of a missing resource", "GET", "/clusters/" + missing + "/statuses", nil, 404, "HYPERFLEET-NTF-001", ""},
		{"report on a missing resource", "PUT", "/resources/" + missing + "/statuses", a.statusReport("dns", 1, "True"), 404, "HYPERFLEET-NTF-001", ""},
		{"delete a missing resource", "DELETE", "/clusters/" + missing, nil, 404, "HYPERFLEET-NTF-001", ""},
		{"force-delete a missing resource", "POST", "/clusters/" + missing + "/force-delete", `{"reason":"r"}`, 404, "HYPERFLEET-NTF-001", ""},
		{"below a missing parent", "POST", "/clusters/" + missing + "/nodepools", `{"name":"x","spec":{}}`, 404, "HYPERFLEET-NTF-001", ""},
		{"an invalid id", "GET", "/clusters/none", nil, 400, "HYPERFLEET-VAL-001", "id"},
		{"an id in braces", "GET", "/clusters/%7B0198c0de-0000-7000-8000-000000000000%7D", nil, 400, "HYPERFLEET-VAL-001", "id"},
		{"report on an invalid id", "PUT", "/resources/none/statuses", a.statusReport("dns", 1, "True"), 400, "HYPERFLEET-VAL-001", "id"},
		{"POST to statuses", "POST", at + "/statuses", a.statusReport("dns", 1, "True"), 405, "HYPERFLEET-VAL-102", ""},
		{"GET of force-delete", "GET", at + "/force-delete", nil, 405, "HYPERFLEET-VAL-102", ""},
		{"a child on its flat route", "POST", "/nodepools", `{"name":"x","spec":{}}`, 422, "HYPERFLEET-VAL-101", ""},
		{"a child on the root route", "POST", "/resources", `{"kind":"NodePool","name":"x","spec":{}}`, 422, "HYPERFLEET-VAL-101", ""},
		{"no kind", "POST", "/resources", `{"name":"x","spec":{}}`, 400, "HYPERFLEET-VAL-001", "kind"},
		{"unknown kind", "POST", "/resources", `{"kind":"Dragon","name":"x","spec":{}}`, 400, "HYPERFLEET-VAL-001", "kind"},
		{"another kind", "POST", "/clusters", `{"kind":"Channel","name":"xxx","spec":{}}`, 400, "HYPERFLEET-VAL-001", "kind"},
		{"no body", "POST", "/clusters", "", 400, "HYPERFLEET-VAL-001", "body"},
		{"no JSON", "POST", "/clusters", "{", 400, "HYPERFLEET-VAL-001", "body"},
		{"no name", "POST", "/clusters", `{"spec":{}}`, 400, "HYPERFLEET-VAL-001", "name"},
		{"no spec", "POST", "/clusters", `{"name":"abc"}`, 400, "HYPERFLEET-VAL-001", "spec"},
		{"unknown field", "POST", "/clusters", `{"name":"abc","spec":{},"sepc":1}`, 400, "HYPERFLEET-VAL-001", "body"},
		{"unknown field of a report", "PUT", at + "/statuses", `{"adapter":"dns","observed_generation":1,"observed_time":"2026-03-01T12:00:00Z","conditions":[],"dta":{}}`, 400, "HYPERFLEET-VAL-001", "body"},
		{"unknown field of a condition", "PUT", at + "/statuses", `{"adapter":"dns","observed_generation":1,"observed_time":"2026-03-01T12:00:00Z","conditions":[{"type":"Available","status":"True","raeson":"x"}]}`, 400, "HYPERFLEET-VAL-001", "conditions[0]"},
		{"unknown field of a reference", "POST", "/versions", `{"name":"abc","spec":{},"references":{"channel":[{"id":"` + channel.Id + `","knd":"x"}]}}`, 400, "HYPERFLEET-VAL-001", "references.channel[0]"},
		{"short name", "POST", "/clusters", `{"name":"ab","spec":{}}`, 400, "HYPERFLEET-VAL-001", "name"},
		{"invalid characters in the name", "POST", "/clusters", `{"name":"Ab_c","spec":{}}`, 400, "HYPERFLEET-VAL-001", "name"},
		{"label", "POST", "/clusters", `{"name":"abc","spec":{},"labels":{"a b":"c"}}`, 400, "HYPERFLEET-VAL-001", "labels.a b"},
		{"label value", "POST", "/clusters", `{"name":"abc","spec":{},"labels":{"a":"c d"}}`, 400, "HYPERFLEET-VAL-001", "labels.a"},
		{"NUL", "POST", "/clusters", `{"name":"abc","spec":{"a":"\u0000"}}`, 400, "HYPERFLEET-VAL-001", ""},
		{"unknown reference type", "POST", "/clusters", `{"name":"abc","spec":{},"references":{"x":[{"id":"y"}]}}`, 400, "HYPERFLEET-VAL-001", "references.x"},
		{"too few references", "POST", "/versions", `{"name":"abc","spec":{}}`, 400, "HYPERFLEET-VAL-001", "references.channel"},
		{"a duplicate reference", "POST", "/versions", refs(channel.Id, channel.Id), 400, "HYPERFLEET-VAL-001", "references.channel[1]"},
		{"a reference to a missing resource", "POST", "/versions", refs(missing), 400, "HYPERFLEET-VAL-001", "references.channel"},
		{"a reference to another kind", "POST", "/versions", refs(cluster.Id), 400, "HYPERFLEET-VAL-001", "references.channel"},
		{"too large", "POST", "/clusters", large, 413, "HYPERFLEET-VAL-104", ""},
		{"the name is taken", "POST", "/clusters", `{"name":"home","spec":{}}`, 409, "HYPERFLEET-CNF-001", ""},
		{"PATCH of an unknown field", "PATCH", at, `{"name":"other"}`, 400, "HYPERFLEET-VAL-001", "body"},
		{"an empty reason", "POST", at + "/force-delete", `{"reason":""}`, 400, "HYPERFLEET-VAL-001", "reason"},
		{"a reason that is too long", "POST", at + "/force-delete", `{"reason":"` + longText(1025) + `"}`, 400, "HYPERFLEET-VAL-001", "reason"},
		{"page", "GET", "/clusters?page=0", nil, 400, "HYPERFLEET-VAL-001", "page"},
		{"size", "GET", "/clusters?size=101", nil, 400, "HYPERFLEET-VAL-001", "size"},
		{"page and offset", "GET", "/clusters?page=1&offset=1", nil, 400, "HYPERFLEET-VAL-001", "offset"},
		{"offset", "GET", "/clusters?offset=-1", nil, 400, "HYPERFLEET-VAL-001", "offset"},
		{"unknown parameter", "GET", "/clusters?serach=x", nil, 400, "HYPERFLEET-VAL-001", "serach"},
		{"a duplicate parameter", "GET", "/clusters?page=1&page=2", nil, 400, "HYPERFLEET-VAL-001", "page"},
		{"search", "GET", "/clusters?search=name%3D", nil, 400, "HYPERFLEET-VAL-007", ""},
		{"order", "GET", "/clusters?order=moon", nil, 400, "HYPERFLEET-VAL-007", ""},
		{"fields", "GET", "/clusters?fields=moon", nil, 400, "HYPERFLEET-VAL-007", "fields"},
		{"half a reference", "GET", "/clusters?ref_type=x", nil, 400, "HYPERFLEET-VAL-001", "ref_type"},
		{"a list of an unknown kind", "GET", "/resources?kind=Dragon", nil, 400, "HYPERFLEET-VAL-001", "kind"},
		{"changes of an unknown kind", "GET", "/changes?kind=clusters", nil, 400, "HYPERFLEET-VAL-001", "kind"},
		{"cursor", "GET", "/changes?after=x", nil, 400, "HYPERFLEET-VAL-001", "after"},
		{"wait", "GET", "/changes?wait=56", nil, 400, "HYPERFLEET-VAL-001", "wait"},
		{"lease name", "PUT", "/leases/A", `{"holder":"h","ttl_seconds":1}`, 400, "HYPERFLEET-VAL-001", "name"},
		{"lease ttl", "PUT", "/leases/a", `{"holder":"h","ttl_seconds":301}`, 400, "HYPERFLEET-VAL-001", "ttl_seconds"},
		{"a generation out of range", "PUT", at + "/statuses", `{"adapter":"dns","observed_generation":9000000000,"observed_time":"2026-03-01T12:00:00Z","conditions":[]}`, 400, "HYPERFLEET-VAL-001", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			got := a.do(tc.method, tc.path, tc.body)
			if got.status != tc.status {
				t.Errorf("status %d, want %d: %s", got.status, tc.status, got.body)
			}

			what := requireProblem(t, got, tc.code)
			if tc.status == 405 && got.header.Get("Allow") == "" {
				t.Error("the response has no Allow header")
			}

			if tc.field == "" {
				return
			}

			if what.Errors == nil || !hasField(what, tc.field) {
				t.Errorf("errors %+v, want one of %s", what.Errors, tc.field)
			}
		})
	}

	text := a.withHeader("Content-Type", "text/plain")
	requireProblem(t, text.do("POST", "/clusters", `{"name":"abc","spec":{}}`), "HYPERFLEET-VAL-105")

	if got := a.do("POST", at+"/statuses", `{}`); got.header.Get("Allow") != "GET, PUT" {
		t.Errorf("Allow %s", got.header.Get("Allow"))
	}
}

func hasField(what openapi.Problem, field string) bool {
	return slices.ContainsFunc(what.Errors, func(one openapi.FieldError) bool { return one.Field == field && one.Message != "" })
}

func longText(length int) string { return strings.Repeat("a", length) }

// refs creates a Version with references to channels.
func refs(ids ...string) map[string]any {
	var list []any
	for _, id := range ids {
		list = append(list, map[string]any{"id": id})
	}

	return map[string]any{"name": "abc", "spec": map[string]any{}, "references": map[string]any{"channel": list}}
}
