// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// BenchmarkNoChange handles events that change nothing, with one read each out of the
// cache, several gates and two labels to render, on all processors. It prints events a
// second, and how many times the floor that is: a bare cached read with the decoding of
// an event's JSON, measured in the same run.
func BenchmarkNoChange(b *testing.B) {
	f := newFleet(b, `
  - name: config
    when: {expression: "!flag || deleting"}
    discovery: {namespace: "{{ .ns }}", by_name: "web-{{ .serial }}"}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "web-{{ .serial }}", namespace: "{{ .ns }}"}
      data: {value: "{{ .value }}"}
    lifecycle:
      recreate: {when: {expression: "resources.?config.hasValue() && dig(resources.config, 'data.value') == 'recreate'"}}
      detach: {when: {expression: "deleting && flag"}}
      delete: {when: {expression: deleting}}
`)

	const objects = 100

	inputs := make([]resources.Input, objects)
	for i := range inputs {
		inputs[i] = f.input(event{generation: 1, value: "a", serial: strconv.Itoa(i)})
		if result, err := resources.Run(b.Context(), inputs[i]); err != nil || result.Err() != nil {
			b.Fatal(err, result.Err())
		}
	}

	refs := cachedRefs(b, f, objects)

	floor := rate(b, func(i int) { bare(b, refs[i%objects]) })
	b.ResetTimer()

	events := rate(b, func(i int) {
		result, err := resources.Run(b.Context(), inputs[i%objects])
		if err != nil || result.Outcomes[0].Reason != "GenerationUnchanged" {
			b.Error(err, short(result))
		}
	})

	b.ReportMetric(events, "events/s")
	b.ReportMetric(floor/events, "times-the-floor")
	b.ReportMetric(0, "ns/op")
}

// cachedRefs waits until all objects are read out of the cache.
func cachedRefs(b *testing.B, f *fleet, objects int) []transport.Ref {
	b.Helper()

	refs := make([]transport.Ref, objects)

	for i := range refs {
		refs[i] = transport.Ref{GVK: f.configMap("").GroupVersionKind(), Namespace: f.ns, Name: fmt.Sprintf("web-%d", i)}

		eventually(b, "the cache has the object", func() bool {
			object, err := one(b.Context(), clients[transport.Kubernetes], refs[i], transport.Cached)

			return err == nil && object.GetManagedFields() == nil
		})
	}

	return refs
}

func bare(b *testing.B, ref transport.Ref) {
	b.Helper()

	var decoded map[string]any

	data := []byte(`{"id":"0199f1c8-6d52-7b1c-9d0e-0a7d2f3b4c5d","kind":"Cluster","generation":1,"href":"/api/hyperfleet/v1/clusters/1"}`)
	if err := json.Unmarshal(data, &decoded); err != nil {
		b.Error(err)
	}

	if _, err := one(b.Context(), clients[transport.Kubernetes], ref, transport.Cached); err != nil {
		b.Error(err)
	}
}

// rate calls do b.N times on all processors and gives calls a second.
func rate(b *testing.B, do func(i int)) float64 {
	b.Helper()

	workers := runtime.GOMAXPROCS(0)
	start := time.Now()

	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for i := worker; i < b.N; i += workers {
				do(i)
			}
		})
	}

	wg.Wait()

	return float64(b.N) / time.Since(start).Seconds()
}
