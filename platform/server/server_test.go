// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/postgres"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

func TestNewReportsAllErrors(t *testing.T) {
	t.Parallel()

	opened, err := store.Open(t.Context(), store.Options{URL: database.NewDatabase(t)})
	must.Do(t, err)
	defer opened.Close()

	_, err = server.New(server.Options{Store: opened, Entities: []platform.Entity{
		{Kind: "A", Plural: "as", ParentKind: "B", Conditions: []platform.MappedCondition{{Type: "M", When: platform.Expression{Expression: "nope"}}}},
	}})
	for _, want := range []string{"parent_kind", "nope", "output.status"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %q", err, want)
		}
	}

	for _, conf := range []platform.Issuer{
		{IssuerURL: "i"}, {JWKCertURL: "u"}, {IssuerURL: "i", JWKCertURL: "u", JWKCertFile: "f"},
		{IssuerURL: "i", JWKCertURL: "u", JWKCertCAFile: "/none"},
	} {
		if _, err := server.New(server.Options{Store: opened, Entities: newEntities(), Issuers: []platform.Issuer{conf}}); err == nil {
			t.Errorf("%+v was accepted", conf)
		}
	}
}

// TestLongPoll checks that a request that waits for changes returns when there is a change, and
// when the program starts to shut down.
func TestLongPoll(t *testing.T) {
	t.Parallel()

	stopping, stop := context.WithCancel(t.Context())
	a := serve(t, func(o *server.Options) { o.Stopping = stopping })
	cursor := as[openapi.ChangeList](t, a.do("GET", "/changes", nil), 200).Next

	wait := func() <-chan reply {
		out := make(chan reply, 1)

		go func() {
			got, err := a.tryRequest(t.Context(), "GET", "/changes?wait=55&after="+cursor, nil)
			if err != nil {
				t.Error(err)
			}

			out <- got
		}()

		return out
	}

	waiting := wait()
	cluster := a.create("/clusters", "home", nil)

	page := as[openapi.ChangeList](t, <-waiting, 200)
	if len(page.Items) != 1 || page.Items[0].Id != cluster.Id || page.Items[0].Operation != "created" {
		t.Errorf("%+v", page)
	}

	cursor = page.Next
	waiting = wait()

	stop()

	if page := as[openapi.ChangeList](t, <-waiting, 200); len(page.Items) != 0 || page.Next != cursor {
		t.Errorf("%+v", page)
	}

	a.create("/clusters", "more", nil)

	if page := as[openapi.ChangeList](t, a.do("GET", "/changes?after="+page.Next, nil), 200); len(page.Items) != 1 {
		t.Errorf("%+v", page)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)
	a.create("/clusters", "other", nil)
	a.create("/channels", "stable", nil)
	a.clock.Step(2 * time.Minute)
	a.create("/clusters", "later", nil)
	a.clock.Step(29 * time.Minute)
	// Reconciled becomes True, False and True again.
	a.report(cluster.Id, "dns", 1, "True")
	a.report(cluster.Id, "namespace", 1, "True")
	a.report(cluster.Id, "namespace", 1, "False")
	a.report(cluster.Id, "namespace", 1, "True")
	as[openapi.Resource](t, a.do("DELETE", "/clusters/"+cluster.Id, nil), 202)
	a.do("GET", "/dragons/x/y/z/a/b", nil)
	a.do("GET", "/dragons", nil)

	page := func() string {
		text, err := scrape.Render(a.metrics)
		must.Do(t, err)

		return text
	}

	text := page()

	for _, want := range []string{
		`hyperfleet_api_reconciliation_requests_total{is_delete="false",resource_type="cluster"} 4`,
		`hyperfleet_api_reconciliation_requests_total{is_delete="true",resource_type="cluster"} 1`,
		`hyperfleet_api_reconciliation_started_total{is_delete="false",resource_type="cluster"} 4`,
		`hyperfleet_api_reconciliation_started_total{is_delete="true",resource_type="cluster"} 1`,
		`hyperfleet_api_resource_pending_reconciliation{is_delete="false",resource_type="cluster"} 2`,
		`hyperfleet_api_resource_pending_reconciliation{is_delete="true",resource_type="cluster"} 1`,
		`hyperfleet_api_resource_pending_reconciliation{is_delete="false",resource_type="channel"} 0`,
		`hyperfleet_api_resource_pending_reconciliation_stuck{is_delete="false",resource_type="cluster"} 1`,
		`hyperfleet_api_resource_pending_reconciliation_stuck{is_delete="true",resource_type="cluster"} 0`,
		`hyperfleet_api_resource_pending_reconciliation_stuck_duration_seconds{is_delete="false",resource_type="cluster"} 1860`,
		`hyperfleet_api_request_duration_seconds_count{code="201",method="POST",path="/api/hyperfleet/v1/clusters"} 3`,
		`hyperfleet_api_requests_total{code="201",method="PUT",path="/api/hyperfleet/v1/resources/-/statuses"} 4`,
		`hyperfleet_api_requests_total{code="404",method="GET",path="/api/hyperfleet/v1/-"} 1`,
		`hyperfleet_api_requests_total{code="404",method="none",path="none"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics do not contain %s", want)
		}
	}

	if strings.Contains(text, cluster.Id) || strings.Contains(text, "dragons") {
		t.Error("the metrics contain names from requests")
	}

	if strings.Contains(text, "pending_deletion") {
		t.Error("there is a metric of deletions alone")
	}

	// A second scrape shortly after the first one does not query the database.
	as[openapi.Resource](t, a.do("DELETE", "/resources/"+as[openapi.ResourceList](t, a.do("GET", "/channels", nil), 200).Items[0].Id, nil), 202)
	a.create("/clusters", "third", nil)

	if text := page(); !strings.Contains(text, `pending_reconciliation{is_delete="false",resource_type="cluster"} 2`) {
		t.Error("the counts were not cached")
	}

	a.clock.Step(6 * time.Second)

	if text := page(); !strings.Contains(text, `pending_reconciliation{is_delete="false",resource_type="cluster"} 3`) {
		t.Error("the counts were cached for too long")
	}

	// The oldest of several stuck resources determines the duration.
	a.clock.Step(10 * time.Minute)

	text = page()
	for _, want := range []string{`stuck{is_delete="false",resource_type="cluster"} 2`, `stuck_duration_seconds{is_delete="false",resource_type="cluster"} 2466`} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics do not contain %s", want)
		}
	}
}

// TestDatabaseUnavailable checks that the server responds with a problem that tells clients to retry, and
// keeps running.
func TestDatabaseUnavailable(t *testing.T) {
	t.Parallel()

	own := postgres.Start(t)
	a := serve(t, func(o *server.Options) {
		opened, err := store.Open(t.Context(), store.Options{URL: own.NewDatabase(t), Timeout: 5 * time.Second})
		must.Do(t, err)

		t.Cleanup(opened.Close)

		o.Store = opened
	})
	cluster := a.create("/clusters", "home", nil)

	// PostgreSQL then stops its own child processes, as in an immediate shutdown.
	must.Do(t, own.Process().Signal(syscall.SIGQUIT))

	<-own.Process().Done()

	for _, got := range []reply{
		a.do("GET", "/clusters", nil), a.do("GET", "/clusters/"+cluster.Id, nil),
		a.do("POST", "/clusters", `{"name":"other","spec":{}}`),
		a.do("PUT", "/leases/a", `{"holder":"h","ttl_seconds":1}`),
	} {
		requireProblem(t, got, "HYPERFLEET-SVC-001")

		if got.status != 503 || got.header.Get("Retry-After") == "" {
			t.Errorf("%d %s", got.status, got.header)
		}
	}

	own.KillAndRestart(t)

	for try := 0; a.do("GET", "/clusters/"+cluster.Id, nil).status != 200; try++ {
		if try == 100 {
			t.Fatal("the API does not respond, although the database is available again")
		}
	}
}

// TestRequestIDs checks that safe request IDs are returned, and that unsafe ones are replaced.
func TestRequestIDs(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)

	if got := a.withHeader("X-Request-Id", "abc-1").do("GET", "/clusters", nil).header.Get("X-Request-Id"); got != "abc-1" {
		t.Error(got)
	}

	for _, id := range []string{"", "a b", longText(65), `a"b`} {
		if got := a.withHeader("X-Request-Id", id).do("GET", "/clusters", nil).header.Get("X-Request-Id"); got == id || len(got) != 36 {
			t.Errorf("%q: %q", id, got)
		}
	}

	traced := a.withHeader("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if got := requireProblem(t, traced.do("GET", "/dragons", nil), "HYPERFLEET-NTF-000"); got.TraceId != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("trace %q", got.TraceId)
	}
}

// TestUnregisteredKind checks that resources of such a kind can be read. A response
// that they do not exist would make sweep delete their objects.
func TestUnregisteredKind(t *testing.T) {
	t.Parallel()

	url := database.NewDatabase(t)
	reopen := func(o *server.Options) {
		opened, err := store.Open(t.Context(), store.Options{URL: url})
		must.Do(t, err)

		t.Cleanup(opened.Close)

		o.Store = opened
	}

	before := serve(t, reopen)
	cluster := before.create("/clusters", "home", nil)
	pool := before.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)

	after := serve(t, func(o *server.Options) {
		reopen(o)

		o.Entities = []platform.Entity{{Kind: "Cluster", Plural: "clusters"}}
	})

	if got := as[openapi.Resource](t, after.do("GET", "/resources/"+pool.Id, nil), 200); got.Href != "/api/hyperfleet/v1/resources/"+pool.Id {
		t.Errorf("%+v", got)
	}

	at := "/resources/" + pool.Id
	requireProblem(t, after.do("PATCH", at, `{"spec":{"a":1}}`), "HYPERFLEET-CNF-003")
	requireProblem(t, after.do("DELETE", at, nil), "HYPERFLEET-CNF-003")
	requireProblem(t, after.do("PUT", at+"/statuses", after.statusReport("machines", 1, "True")), "HYPERFLEET-CNF-003")
	requireProblem(t, after.do("DELETE", "/clusters/"+cluster.Id, nil), "HYPERFLEET-CNF-101")
}
