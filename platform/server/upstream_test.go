// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// These are the fields that upstream's OpenAPI document requires in a response.
var (
	ofResource = []string{
		"id", "kind", "name", "href", "spec", "generation", "created_time", "updated_time", "created_by", "updated_by", "status.conditions",
	}
	ofList     = []string{"items", "page", "size", "total"}
	ofStatus   = []string{"adapter", "observed_generation", "conditions", "created_time", "last_report_time"}
	ofProblem  = []string{"type", "title", "status", "code"}
	ofChild    = append([]string{"owner_references.id", "owner_references.kind"}, ofResource...)
	ofDocument = []string{"openapi", "paths", "components.schemas"}
)

// TestUpstreamOperations calls each operation of upstream's OpenAPI document with what its clients
// send and read. Every test validates responses against our own document (fits).
func TestUpstreamOperations(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	ids := map[string]string{}
	report := func(adapter string, generation int32) any { return a.statusReport(adapter, generation, "True") }

	for _, tc := range []struct {
		operation string
		body      any
		status    int
		has       []string
		// keep is the name under which later requests refer to the ID in the response.
		keep string
	}{
		{"POST /clusters", `{"kind":"Cluster","name":"home","spec":{},"labels":{"a":"b"},"id":"mine","href":"/mine"}`, 201, ofResource, "C"},
		{"POST /clusters", `{"kind":"Cluster","name":"home","spec":{}}`, 409, ofProblem, ""},
		{"POST /clusters", `{"kind":"Cluster","spec":{}}`, 400, ofProblem, ""},
		{"GET /clusters?search=name in ['home','away'] and created_by='anonymous'&page=1&size=5&order=created_time", nil, 200, ofList, ""},
		{"GET /clusters/C", nil, 200, ofResource, ""},
		{"GET /clusters/C?search=name='home'", nil, 200, ofResource, ""},
		{"GET /clusters/C?search=name='other'", nil, 404, ofProblem, ""},
		{"PATCH /clusters/C", `{"spec":{"a":1},"labels":{"env":"staging"}}`, 200, ofResource, ""},
		{"PUT /clusters/C/statuses", report("dns", 2), 201, ofStatus, ""},
		{"PUT /clusters/C/statuses", report("other", 2), 201, ofStatus, ""},
		{"GET /clusters/C/statuses?search=adapter='dns'&page=1&size=5&order=created_time desc", nil, 200, ofList, ""},
		{"POST /clusters/C/nodepools", `{"kind":"NodePool","name":"workers","spec":{}}`, 201, ofChild, "P"},
		{"GET /clusters/C/nodepools?search=name='workers'&page=1&size=5&order=name", nil, 200, ofList, ""},
		{"GET /nodepools?search=owner_id='C'&page=1&size=5&order=name", nil, 200, ofList, ""},
		{"GET /clusters/C/nodepools/P", nil, 200, ofChild, ""},
		{"GET /nodepools/P", nil, 200, ofChild, ""},
		{"POST /nodepools/P/force-delete", `{"reason":"r"}`, 409, ofProblem, ""},
		{"PATCH /clusters/C/nodepools/P", `{"spec":{"a":1}}`, 200, ofChild, ""},
		{"PUT /clusters/C/nodepools/P/statuses", report("machines", 2), 201, ofStatus, ""},
		{"GET /clusters/C/nodepools/P/statuses?page=1&size=5", nil, 200, ofList, ""},
		{"DELETE /clusters/C/nodepools/P", nil, 202, ofChild, ""},
		{"POST /clusters/C/nodepools/P/force-delete", `{"reason":"r"}`, 204, nil, ""},
		{"POST /resources", `{"kind":"Channel","name":"stable","spec":{},"labels":{}}`, 201, ofResource, "R"},
		{"GET /resources?search=kind='Channel'&page=1&size=5&order=name", nil, 200, ofList, ""},
		{"GET /resources/R", nil, 200, ofResource, ""},
		{"PATCH /resources/R", `{"labels":{"a":"b"}}`, 200, ofResource, ""},
		{"PUT /resources/R/statuses", report("other", 2), 201, ofStatus, ""},
		{"PUT /resources/R/statuses", report("other", 1), 204, nil, ""},
		{"PUT /leases/a", `{"holder":"one","ttl_seconds":300}`, 200, []string{"holder", "expires_in_seconds"}, ""},
		{"GET /resources/R/statuses", nil, 200, ofList, ""},
		{"DELETE /resources/R", nil, 202, ofResource, ""},
		{"POST /resources/R/force-delete", `{"reason":"r"}`, 404, ofProblem, ""},
		{"DELETE /clusters/C", nil, 202, ofResource, ""},
		{"POST /clusters/C/force-delete", `{"reason":"r"}`, 204, nil, ""},
		{"GET /clusters/C", nil, 404, ofProblem, ""},
	} {
		method, path, _ := strings.Cut(tc.operation, " ")

		for name, id := range ids {
			path = strings.NewReplacer("/"+name, "/"+id, "'"+name+"'", "'"+id+"'").Replace(path)
		}

		got := a.do(method, strings.ReplaceAll(path, " ", "%20"), tc.body)
		if got.status != tc.status {
			t.Errorf("%s: status %d, want %d: %s", tc.operation, got.status, tc.status, got.body)

			continue
		}

		answer := requireFields(t, tc.operation, got.body, tc.has)
		if items, ok := answer["items"].([]any); ok && len(items) != 1 && !strings.Contains(path, "resources/") {
			t.Errorf("%s: %d items", tc.operation, len(items))
		}

		if tc.keep != "" {
			ids[tc.keep], _ = answer["id"].(string)
		}
	}
}

// requireFields reports missing fields of a response, and returns the response.
func requireFields(t *testing.T, what string, body []byte, fields []string) map[string]any {
	t.Helper()

	var answer map[string]any
	if len(body) > 0 {
		if err := json.Unmarshal(body, &answer); err != nil {
			t.Fatalf("%s: %v: %s", what, err, body)
		}
	}

	for _, field := range fields {
		var at any = answer

		for part := range strings.SplitSeq(field, ".") {
			below, _ := at.(map[string]any)
			at = below[part]
		}

		if at == nil {
			t.Errorf("%s: no %s in %s", what, field, body)
		}
	}

	return answer
}

// TestStatusesByPage checks pages, order and search of statuses.
func TestStatusesByPage(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	at := "/clusters/" + a.create("/clusters", "home", nil).Id + "/statuses"

	for _, adapter := range []string{"dns", "namespace", "other"} {
		as[openapi.AdapterStatus](t, a.do("PUT", at, a.statusReport(adapter, 1, "True")), 201)
	}

	for query, want := range map[string]string{
		"":                                 "dns namespace other",
		"?size=2":                          "dns namespace",
		"?size=2&page=2":                   "other",
		"?page=9":                          "",
		"?page=92233720368547760&size=100": "",
		"?offset=1&size=1":                 "namespace",
		"?order=adapter%20desc&size=1":     "other",
		"?search=adapter%20%3D%20'dns'":    "dns",
		"?search=adapter%20in%20('dns',%20'other')": "dns other",
	} {
		got := as[openapi.StatusList](t, a.do("GET", at+query, nil), 200)
		names := []string{}

		for _, one := range got.Items {
			names = append(names, one.Adapter)
		}

		if strings.Join(names, " ") != want || got.Size != len(names) {
			t.Errorf("%s: %v of %d, want %s", query, names, got.Total, want)
		}
	}

	for _, query := range []string{"?order=name", "?order=adapter%20up", "?search=adapter", "?search=name%3D'a'", "?search=adapter%3D'a'%20x"} {
		requireProblem(t, a.do("GET", at+query, nil), "HYPERFLEET-VAL-007")
	}
}

// TestPagesOfStatusesEndEarly checks that a page of statuses has a bound in bytes.
func TestPagesOfStatusesEndEarly(t *testing.T) {
	t.Parallel()

	const reports = 36

	a := serve(t, func(o *server.Options) { o.Adapters = []string{server.AnyAdapter} })
	at := "/clusters/" + a.create("/clusters", "home", nil).Id + "/statuses"

	for i := range reports {
		report := a.statusReport(fmt.Sprintf("adapter%02d", i), 1, "True")
		report.Data = &openapi.Object{"x": longText(250 << 10)}
		as[openapi.AdapterStatus](t, a.do("PUT", at, report), 201)
	}

	first := as[openapi.StatusList](t, a.do("GET", at+"?size=100", nil), 200)
	if first.Total != reports || first.Size != first.NextOffset || first.Size != len(first.Items) || first.Size < 30 || first.Size == reports {
		t.Fatalf("%d of %d items, then %d", first.Size, first.Total, first.NextOffset)
	}

	rest := as[openapi.StatusList](t, a.do("GET", fmt.Sprintf("%s?size=100&offset=%d", at, first.NextOffset), nil), 200)
	if rest.Size != reports-first.Size || rest.NextOffset != 0 || rest.Items[0].Adapter != fmt.Sprintf("adapter%02d", first.Size) {
		t.Errorf("%d items, then %d", rest.Size, rest.NextOffset)
	}
}

// TestDocument checks that the description of the API needs no token.
func TestDocument(t *testing.T) {
	t.Parallel()

	a, _ := serveWithTokens(t)

	for path, has := range map[string][]string{
		"/openapi": ofDocument, "/openapi.html": nil, "/..": {"id", "kind", "href", "version"},
	} {
		url := a.url + path
		if path == "/.." {
			url = strings.TrimSuffix(a.url, "/v1")
		}

		response, err := http.Get(url)
		must.Do(t, err)

		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()

		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d, %v", path, response.StatusCode, err)
		}

		if has == nil {
			if !strings.Contains(string(body), "force-delete") {
				t.Errorf("%s: %s", path, body)
			}

			continue
		}

		requireFields(t, path, body, has)
	}
}
