// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

var database *postgres.Server

func TestMain(m *testing.M) {
	postgres.Main(m, func(s *postgres.Server) { database = s })
}

// startTime is the start time of the tests' clock.
func startTime() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// newEntities returns the kinds of most tests.
func newEntities() []platform.Entity {
	expression := func(text string) platform.Expression { return platform.Expression{Expression: text} }

	return []platform.Entity{
		{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"dns", "namespace"}, NameMinLen: 3, NameMaxLen: 53},
		{
			Kind: "NodePool", Plural: "nodepools", ParentKind: "Cluster", OnParentDelete: "cascade",
			RequiredAdapters: []string{"machines"},
		},
		{Kind: "Backup", Plural: "backups", ParentKind: "Cluster", OnParentDelete: "restrict"},
		{Kind: "Channel", Plural: "channels"},
		{
			Kind: "Version", Plural: "versions", RequiredAdapters: []string{"images"},
			References: []platform.ReferenceRule{
				{RefType: "channel", TargetKind: "Channel", Min: 1, Max: 2},
				{RefType: "hint", TargetKind: "Channel", Weak: true},
				{RefType: "used_by", TargetKind: "Cluster", Weak: true},
			},
			Conditions: []platform.MappedCondition{{
				Type: "Quota", When: expression(`statuses.exists(s, s.adapter == "images" && s.?data.?quota.hasValue())`),
				Output: platform.ConditionOutput{
					Status:  expression(`statuses.filter(s, s.adapter == "images")[0].data.quota > 10 ? "True" : "False"`),
					Reason:  expression(`"Quota"`),
					Message: expression(`resource.name + " has " + string(statuses.filter(s, s.adapter == "images")[0].data.quota)`),
				},
			}},
		},
	}
}

// api is a running server with its database.
type api struct {
	t   *testing.T
	url string
	// database is the URL of its database.
	database string
	clock    *clocktesting.FakeClock
	store    *store.Store
	metrics  *prometheus.Registry
	log      *capture.Buffer
	header   http.Header
	doc      *openapi3.T
	routes   *http.ServeMux
}

// audit returns the audit entries of a resource, oldest first.
func (a *api) audit(id string) []store.AuditEntry {
	a.t.Helper()

	conn, err := pgx.Connect(a.t.Context(), a.database)
	if err != nil {
		a.t.Fatal(err)
	}
	defer conn.Close(context.Background())

	rows, err := conn.Query(a.t.Context(),
		"select at, actor, action, reason, resource_id, kind, name, removed from audit where resource_id = $1 order by id", id)
	if err != nil {
		a.t.Fatal(err)
	}

	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[store.AuditEntry])
	if err != nil {
		a.t.Fatal(err)
	}

	return entries
}

func serve(t *testing.T, change func(*server.Options)) *api {
	t.Helper()

	keptAt := fleetapi.NewDatabase(t, database)

	opened, err := store.Open(t.Context(), store.Options{URL: keptAt, Timeout: time.Minute})
	must.Do(t, err)

	t.Cleanup(opened.Close)

	a := &api{
		t: t, database: keptAt, clock: clocktesting.NewFakeClock(startTime()), store: opened, metrics: prometheus.NewRegistry(), log: &capture.Buffer{},
		header: http.Header{}, routes: http.NewServeMux(),
	}
	options := server.Options{
		Store: opened, Entities: newEntities(), Adapters: []string{"other", "stranger", "at0", "at35"}, Clock: a.clock, Metrics: a.metrics,
		Log: slog.New(slog.NewJSONHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}

	if change != nil {
		change(&options)
	}

	handler, err := server.New(options)
	must.Do(t, err)

	listening := httptest.NewServer(handler)
	t.Cleanup(listening.Close)

	a.url = listening.URL + server.BasePath
	a.loadContract()

	return a
}

// loadContract builds a router from the OpenAPI document, independent of the server's routes.
func (a *api) loadContract() {
	doc, err := openapi3.NewLoader().LoadFromData(openapi.Document())
	if err != nil {
		a.t.Fatal(err)
	}

	a.doc = doc

	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			a.routes.HandleFunc(method+" "+server.BasePath+path, func(http.ResponseWriter, *http.Request) {})
		}
	}
}

// reply is a response that was validated against the OpenAPI document.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// as decodes a response, which has to have the expected status.
func as[T any](t *testing.T, got reply, status int) T {
	t.Helper()

	var out T

	if got.status != status {
		t.Fatalf("status %d, want %d: %s", got.status, status, got.body)
	}

	if len(got.body) > 0 {
		if err := json.Unmarshal(got.body, &out); err != nil {
			t.Fatalf("%v: %s", err, got.body)
		}
	}

	return out
}

// withHeader returns the same API for a caller with another header.
func (a *api) withHeader(name, value string) *api {
	out := *a
	out.header = a.header.Clone()
	out.header.Set(name, value)

	return &out
}

// do sends a request. The body is JSON text, or a value to encode.
func (a *api) do(method, path string, body any) reply {
	a.t.Helper()

	got, err := a.tryRequest(a.t.Context(), method, path, body)
	if err != nil {
		a.t.Fatal(err)
	}

	return got
}

func (a *api) tryRequest(ctx context.Context, method, path string, body any) (reply, error) {
	var text []byte

	switch typed := body.(type) {
	case nil:
	case string:
		text = []byte(typed)
	default:
		text, _ = json.Marshal(body)
	}

	r, err := http.NewRequestWithContext(ctx, method, a.url+path, bytes.NewReader(text))
	if err != nil {
		return reply{}, err
	}

	r.Header = a.header.Clone()
	if body != nil && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}

	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return reply{}, err
	}

	defer func() { _ = response.Body.Close() }()

	data, err := io.ReadAll(response.Body)
	if err != nil {
		return reply{}, err
	}

	got := reply{response.StatusCode, response.Header, data}

	return got, a.checkContract(r, got)
}

// checkContract validates a response against the OpenAPI document. If the document does not have the route,
// the response has to be a problem.
func (a *api) checkContract(r *http.Request, got reply) error {
	_, pattern := a.routes.Handler(r)
	if pattern == "" {
		if got.header.Get("Content-Type") != "application/problem+json" {
			return fmt.Errorf("%s %s: %d without a problem: %s", r.Method, r.URL.Path, got.status, got.body)
		}

		return nil
	}

	method, path, _ := strings.Cut(pattern, " ")
	item := a.doc.Paths.Find(strings.TrimPrefix(path, server.BasePath))
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: r, Route: &routers.Route{Spec: a.doc, PathItem: item, Method: method, Operation: item.GetOperation(method)},
		},
		Status: got.status, Header: got.header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	input.SetBodyBytes(got.body)

	if err := openapi3filter.ValidateResponse(r.Context(), input); err != nil {
		return fmt.Errorf("%s %s: %d does not fit the contract: %w: %s", r.Method, r.URL.Path, got.status, err, got.body)
	}

	return nil
}

// create creates a resource in a collection.
func (a *api) create(path, name string, body map[string]any) openapi.Resource {
	a.t.Helper()

	whole := map[string]any{"name": name, "spec": map[string]any{}}
	maps.Copy(whole, body)

	return as[openapi.Resource](a.t, a.do("POST", path, whole), 201)
}

func (a *api) get(r openapi.Resource) openapi.Resource {
	a.t.Helper()

	return as[openapi.Resource](a.t, a.do("GET", "/resources/"+r.Id, nil), 200)
}

// isGone returns true if the API responds with a well-formed problem that the resource does not exist.
func (a *api) isGone(id string) bool {
	a.t.Helper()

	got := a.do("GET", "/resources/"+id, nil)
	if got.status != 404 {
		return false
	}

	if code := as[openapi.Problem](a.t, got, 404).Code; code != "HYPERFLEET-NTF-001" {
		a.t.Fatalf("not found with code %s", code)
	}

	return true
}

// statusReport returns a report with the mandatory conditions.
func (a *api) statusReport(adapter string, generation int32, available string, more ...string) openapi.StatusReport {
	out := openapi.StatusReport{
		Adapter: adapter, ObservedGeneration: generation, ObservedTime: a.clock.Now(),
		Conditions: []openapi.AdapterCondition{
			{Type: "Available", Status: available, Reason: "Said"}, {Type: "Applied", Status: "True"},
			{Type: "Health", Status: "True"},
		},
	}

	for _, conditionType := range more {
		out.Conditions = append(out.Conditions, openapi.AdapterCondition{Type: conditionType, Status: "True"})
	}

	return out
}

// report sends a status report that has to be accepted.
func (a *api) report(id, adapter string, generation int32, available string, more ...string) {
	a.t.Helper()
	as[openapi.AdapterStatus](a.t, a.do("PUT", "/resources/"+id+"/statuses",
		a.statusReport(adapter, generation, available, more...)), 201)
}

func findCondition(r openapi.Resource, conditionType string) openapi.ResourceCondition {
	found, _ := conditions.Condition(r.Status.Conditions, conditionType)

	return found
}

// requireProblem decodes a problem that has to have the code.
func requireProblem(t *testing.T, got reply, code string) openapi.Problem {
	t.Helper()

	var out openapi.Problem
	if err := json.Unmarshal(got.body, &out); err != nil || out.Code != code || out.Status != got.status {
		t.Fatalf("%d %s, want %s: %v", got.status, got.body, code, err)
	}

	if out.Title == "" || !strings.HasPrefix(out.Type, "urn:hyperfleet:problem:") || got.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("problem %+v as %s", out, got.header.Get("Content-Type"))
	}

	return out
}
