// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// ifMatch returns the same API for requests with the header.
func (a *api) ifMatch(value string) *api { return a.withHeader("If-Match", value) }

func TestETags(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	created := a.do("POST", "/clusters", `{"name":"home","spec":{"price":1.10,"at":1e2}}`)
	r := as[openapi.Resource](t, created, 201)
	path := "/clusters/" + r.Id

	require := func(place string, want, got string) {
		t.Helper()

		if got != want || !strings.HasPrefix(got, `"`) {
			t.Errorf("%s: ETag %s, want %s", place, got, want)
		}
	}

	require("create", created.header.Get("ETag"), r.Etag)

	for _, route := range []string{path, "/resources/" + r.Id, path + "?search=name='home'"} {
		got := a.do("GET", route, nil)
		require(route, r.Etag, got.header.Get("ETag"))
		require(route, r.Etag, as[openapi.Resource](t, got, 200).Etag)
	}

	for _, route := range []string{"/clusters", "/resources", "/clusters?fields=etag"} {
		require(route, r.Etag, as[openapi.ResourceList](t, a.do("GET", route, nil), 200).Items[0].Etag)
	}

	if got := a.do("GET", "/clusters?fields=name", nil); strings.Contains(string(got.body), "etag") {
		t.Errorf("a field that was not selected: %s", got.body)
	}

	tags := map[string]string{r.Etag: "create"}
	change := func(name string, got reply) {
		t.Helper()

		tag := a.do("GET", path, nil).header.Get("ETag")
		if previous, isUsed := tags[tag]; isUsed {
			t.Errorf("%s: the ETag is that of %s", name, previous)
		}

		if got.header.Get("ETag") != "" {
			require(name, tag, got.header.Get("ETag"))
		}

		tags[tag] = name
	}

	change("labels", a.do("PATCH", path, `{"labels":{"a":"b"}}`))
	change("report", a.do("PUT", path+"/statuses", a.statusReport("dns", 2, "True")))
	change("deletion", a.do("DELETE", path, nil))
}

func TestIfMatch(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	r := a.create("/clusters", "home", nil)
	path := "/clusters/" + r.Id
	stale := r.Etag

	as[openapi.Resource](t, a.ifMatch(stale).do("PATCH", path, `{"spec":{"a":1}}`), 200)

	current := a.get(r).Etag
	opaque := strings.Trim(current, `"`)

	for name, tc := range map[string]struct {
		header string
		status int
	}{
		"stale":               {stale, 412},
		"weak":                {"W/" + current, 412},
		"several":             {`"a,b" , ` + stale, 412},
		"of the same form":    {`"` + strings.Repeat("A", len(opaque)) + `"`, 412},
		"no quotes":           {opaque, 400},
		"one quote":           {`"` + opaque, 400},
		"two without a comma": {current + current, 400},
		"empty":               {"", 400},
		"a star in a list":    {"*, " + current, 400},
	} {
		for _, request := range [][3]string{
			{"PATCH", path, `{"spec":{"a":2}}`}, {"DELETE", path, ""}, {"PUT", path + "/statuses", string(mustJSON(t, a.statusReport("dns", 2, "True")))},
		} {
			var body any
			if request[2] != "" {
				body = request[2]
			}

			got := a.ifMatch(tc.header).do(request[0], request[1], body)
			if got.status != tc.status {
				t.Errorf("%s, %s: %d %s, want %d", name, request[0], got.status, got.body, tc.status)
			}

			if tc.status == http.StatusPreconditionFailed {
				requireProblem(t, got, "HYPERFLEET-VAL-106")
			}
		}
	}

	if got := a.get(r); got.Etag != current {
		t.Fatalf("a refused request has changed the resource: %+v", got)
	}

	// Other errors come first, and no resource has no ETag.
	requireProblem(t, a.ifMatch(stale).do("PATCH", path, `{"labels":{"a b":"c"}}`), "HYPERFLEET-VAL-001")
	requireProblem(t, a.ifMatch("*").do("DELETE", "/clusters/0198c0de-0000-7000-8000-000000000000", nil), "HYPERFLEET-NTF-001")

	// Reports of others do not change what an adapter has observed.
	as[openapi.AdapterStatus](t, a.ifMatch(current).do("PUT", path+"/statuses", a.statusReport("dns", 2, "True")), 201)
	as[openapi.AdapterStatus](t, a.ifMatch(current).do("PUT", path+"/statuses", a.statusReport("namespace", 2, "True")), 201)
	requireProblem(t, a.ifMatch(current).do("PATCH", path, `{"spec":{"a":2}}`), "HYPERFLEET-VAL-106")

	as[openapi.Resource](t, a.ifMatch("*").do("PATCH", path, `{"spec":{"a":3}}`), 200)
	as[openapi.Resource](t, a.ifMatch(`W/"x", "y,z",	`+a.get(r).Etag+" ,").do("PATCH", path, `{"spec":{"a":4}}`), 200)
	requireProblem(t, a.ifMatch(stale).do("DELETE", path, nil), "HYPERFLEET-VAL-106")
	as[openapi.Resource](t, a.ifMatch(a.get(r).Etag).do("DELETE", path, nil), 202)
	requireProblem(t, a.ifMatch(stale).do("POST", path+"/force-delete", `{"reason":"r"}`), "HYPERFLEET-VAL-106")

	if got := a.ifMatch(a.get(r).Etag).do("POST", path+"/force-delete", `{"reason":"r"}`); got.status != http.StatusNoContent {
		t.Errorf("%d %s", got.status, got.body)
	}
}

func mustJSON(t *testing.T, value any) []byte {
	t.Helper()

	data, err := json.Marshal(value)
	must.Do(t, err)

	return data
}

// TestTwoWriters checks that no key is lost if two clients read, add a key and write with If-Match.
func TestTwoWriters(t *testing.T) {
	t.Parallel()

	const keys = 10

	a := serve(t, nil)
	r := a.create("/clusters", "home", nil)

	var group sync.WaitGroup

	for writer := range 2 {
		group.Go(func() {
			for key := range keys {
				for {
					current := a.get(r)
					current.Spec[fmt.Sprintf("w%d-%d", writer, key)] = true

					got := a.ifMatch(current.Etag).do("PATCH", "/clusters/"+r.Id, map[string]any{"spec": current.Spec})
					if got.status == http.StatusOK {
						break
					}

					if got.status != http.StatusPreconditionFailed {
						t.Errorf("%d %s", got.status, got.body)

						return
					}
				}
			}
		})
	}

	group.Wait()

	if got := a.get(r); len(got.Spec) != 2*keys {
		t.Errorf("%d of %d keys survived: %v", len(got.Spec), 2*keys, got.Spec)
	}
}

// TestETagsAfterARestore checks that no request with an ETag from before a restore succeeds, although the
// resource has the same generation and spec again.
func TestETagsAfterARestore(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	r := a.create("/clusters", "home", nil)
	path := "/clusters/" + r.Id
	lost := as[openapi.Resource](t, a.do("PATCH", path, `{"spec":{"a":1}}`), 200)

	conn, err := pgx.Connect(t.Context(), a.database)
	must.Do(t, err)
	defer conn.Close(context.Background())

	_, err = conn.Exec(t.Context(), "update resources set generation = 1, spec = '{}', updated_time = created_time")
	must.Do(t, err)

	// A report on a generation that the restore has taken away does not count, now and later.
	for _, adapter := range []string{"dns", "namespace"} {
		if got := a.do("PUT", path+"/statuses", a.statusReport(adapter, lost.Generation, "True")); got.status != http.StatusNoContent {
			t.Errorf("a report on a lost generation: %d %s", got.status, got.body)
		}
	}

	a.clock.Step(time.Second)

	now := as[openapi.Resource](t, a.do("PATCH", path, `{"spec":{"a":1}}`), 200)
	if got := findCondition(now, "Reconciled"); got.Status != "False" || got.ObservedGeneration != 0 {
		t.Errorf("a report on a lost generation counts: %+v", got)
	}

	if now.Generation != lost.Generation || now.Etag == lost.Etag {
		t.Fatalf("before the restore %+v, after it %+v", lost, now)
	}

	requireProblem(t, a.ifMatch(lost.Etag).do("PATCH", path, `{"spec":{"a":2}}`), "HYPERFLEET-VAL-106")
	requireProblem(t, a.ifMatch(lost.Etag).do("PUT", path+"/statuses", a.statusReport("dns", now.Generation, "True")), "HYPERFLEET-VAL-106")
}

// TestReportsOnALostResource checks that a report on a resource that a restore has taken away does not count for
// another one that has its name now.
func TestReportsOnALostResource(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	lost := a.create("/clusters", "home", nil)

	conn, err := pgx.Connect(t.Context(), a.database)
	must.Do(t, err)
	defer conn.Close(context.Background())

	_, err = conn.Exec(t.Context(), "delete from resources")
	must.Do(t, err)

	now := a.create("/clusters", "home", nil)

	for _, adapter := range []string{"dns", "namespace"} {
		for _, path := range []string{"/clusters/", "/resources/"} {
			requireProblem(t, a.do("PUT", path+lost.Id+"/statuses", a.statusReport(adapter, 1, "True")), "HYPERFLEET-NTF-001")
		}
	}

	if got := findCondition(a.get(now), "Reconciled"); got.Status != "False" || got.ObservedGeneration != 0 {
		t.Errorf("a report on a lost resource counts: %+v", got)
	}
}
