// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// The benchmarks measure the requests of an adapter for an event that changes nothing: it reads the
// resource, and repeats its report. For comparison they measure a change of the spec and a read.
// The metric "gets" is the time in units of one read.
func BenchmarkNoChange(b *testing.B) {
	opened, err := store.Open(b.Context(), store.Options{URL: database.NewDatabase(b), Timeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}

	b.Cleanup(opened.Close)

	handler, err := server.New(server.Options{Store: opened, Entities: newEntities()})
	if err != nil {
		b.Fatal(err)
	}

	call := func(method, path string, body, into any) {
		data, _ := json.Marshal(body)
		answer := httptest.NewRecorder()
		request := httptest.NewRequestWithContext(b.Context(), method, server.BasePath+path, bytes.NewReader(data))
		request.Header.Set("Content-Type", "application/json")
		handler.ServeHTTP(answer, request)

		if answer.Code >= http.StatusMultipleChoices {
			b.Fatalf("%s %s: %d %s", method, path, answer.Code, answer.Body)
		}

		if into != nil {
			_ = json.Unmarshal(answer.Body.Bytes(), into)
		}
	}

	const clusters = 50

	ids := make([]string, clusters)

	for i := range ids {
		var made openapi.Resource

		call(http.MethodPost, "/clusters", map[string]any{
			"kind": "Cluster", "name": "home-" + string(rune('a'+i/26)) + string(rune('a'+i%26)), "spec": map[string]any{},
		}, &made)

		ids[i] = made.Id
	}

	var at atomic.Int64

	next := func() string { return ids[at.Add(1)%clusters] }
	get := func() { call(http.MethodGet, "/clusters/"+next(), nil, nil) }
	conditions := []openapi.AdapterCondition{
		{Type: "Applied", Status: "True"}, {Type: "Available", Status: "True"}, {Type: "Health", Status: "True"},
	}
	report := func() {
		call(http.MethodPut, "/clusters/"+next()+"/statuses", openapi.StatusReport{
			Adapter: "dns", ObservedGeneration: 1, ObservedTime: time.Now().UTC(), Conditions: conditions,
		}, nil)
	}

	patch := func() {
		call(http.MethodPatch, "/clusters/"+next(), map[string]any{"spec": map[string]any{"size": at.Load()}}, nil)
	}

	together := func(b *testing.B, do func()) float64 {
		b.Helper()
		b.SetParallelism(8)
		b.ResetTimer()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				do()
			}
		})

		return float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	}

	var one float64

	b.Run("get", func(b *testing.B) { one = together(b, get) })
	b.Run("report", func(b *testing.B) { b.ReportMetric(together(b, report)/one, "gets/op") })
	b.Run("patch", func(b *testing.B) { b.ReportMetric(together(b, patch)/one, "gets/op") })
}
