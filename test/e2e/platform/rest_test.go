// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
)

// What 5,000 reconciled clusters cost Sentinel, at rest and while it lists them all again: for
// a second each look at its memory and pages, from one list's end over the next one's.
func TestAtRest(t *testing.T) {
	const clusters = 5000

	w := newWorld(t, setup{rabbit: true, pace: []string{"RELIST_INTERVAL=10s"}})
	w.start(progAPI)

	names := make([]string, clusters)
	for i := range names {
		names[i] = fmt.Sprintf("rest-%04d", i)
	}

	each(names, func(name string) {
		id := w.create("/clusters", resource{Name: name, Labels: map[string]string{"tier": "gold"}, Spec: map[string]any{"pods": 10}})
		// The adapter's report, as the adapter sends it.
		status, _ := w.send(http.MethodPut, "/clusters/"+id+"/statuses", report())
		if status != http.StatusCreated {
			t.Errorf("report on %s: status %d", name, status)
		}
	})
	w.sayf("%d clusters are reconciled", clusters)
	w.start(progSentinel)
	w.eventually("Sentinel knows them and leads", func() string {
		if w.metric(progSentinel, "hyperfleet_sentinel_known_resources", "") == clusters &&
			w.metric(progSentinel, "hyperfleet_sentinel_leader", "") == 1 {
			return ""
		}

		return "it does not"
	})

	conf := sentinel.Defaults()
	list := float64(clusters)/float64(conf.PageSize) + 1
	pages := func() float64 { return w.metric(progSentinel, "hyperfleet_sentinel_list_pages_total", "") }
	before, most, quiet, listing := pages(), 0.0, 0, 0

	// Seconds are counted and not read off a clock, which may leap where machines are
	// stopped and go on.
	for pages()-before < list {
		if quiet+listing > int(patience.Seconds()) {
			t.Fatalf("never: all are listed again: %.0f of %.0f pages", pages()-before, list)
		}

		time.Sleep(time.Second)

		most = max(most, w.metric(progSentinel, "process_resident_memory_bytes", ""))

		if pages() == before {
			quiet++
		} else {
			listing++
		}
	}

	if quiet == 0 || listing < int(list)/2 || most == 0 {
		t.Errorf("at rest for %d s, listing for %d s, %.0f bytes: this measures nothing", quiet, listing, most)
	}

	w.sayf("Sentinel with %d at rest: no page for %d s, then %.0f in %d s: %.2f a second at the usual interval of %s; %.0f MiB",
		clusters, quiet, list, listing,
		list/(conf.RelistInterval.Seconds()+float64(listing)), conf.RelistInterval, most/(1<<20))

	if sent := w.metric(progSentinel, "hyperfleet_sentinel_events_published_total", ""); sent != 0 {
		t.Errorf("%.0f events were sent of resources that nobody has to look at", sent)
	}
}

// lean is a task file with the least that keeps one object: no calls of its own.
const lean = `
params:
- {name: id, source: event.id, required: true}
- {name: name, source: event.name, required: true}
resources:
- name: space
  manifest:
    apiVersion: v1
    kind: Namespace
    metadata: {name: "cluster-{{ .name }}"}
  discovery: {by_name: "cluster-{{ .name }}"}
`

// report is one of the sample's adapter.
func report() map[string]any {
	return map[string]any{
		"adapter": "cluster-space", "observed_generation": 1, "observed_time": time.Now(),
		"conditions": []map[string]string{
			{"type": "Available", "status": "True"}, {"type": "Applied", "status": "True"}, {"type": "Health", "status": "True"},
		},
	}
}

// asked prints how many times in a second the API answers what the sample's task file asks it
// for each event: the most that an adapter with that file could handle.
func (w *world) asked(ids map[string]string) {
	w.t.Helper()

	const rounds = 20

	var all []string
	for range rounds {
		all = slices.AppendSeq(all, maps.Keys(ids))
	}

	from := time.Now()

	each(all, func(id string) {
		w.send(http.MethodGet, "/clusters/"+id, nil)
		w.send(http.MethodPut, "/clusters/"+id+"/statuses", report())
	})
	w.sayf("the API's own limit, a read and a report: %.0f a second", float64(len(all))/time.Since(from).Seconds())
}

// noChange sends events of clusters that nothing is to be done for straight to the broker,
// and prints how many of them an adapter handles in a second: with the sample's task file,
// which reads the cluster and reports, and with the least that keeps an object.
func (w *world) noChange(ids map[string]string) {
	w.t.Helper()

	for _, task := range []string{"clusters/task.yaml", "lean.yaml"} {
		if task == "lean.yaml" {
			w.write(task, lean)
			// In order: after a crash, RabbitMQ takes a while to see that its queue is free.
			w.must(w.programs[progClusters].process.Stop())

			args := w.programs[progClusters].args
			w.programs[progClusters].args = strings.Split(strings.Replace(strings.Join(args, " "), "clusters/task.yaml", task, 1), " ")
			w.start(progClusters)
		}

		done := func() float64 {
			return w.metric(progClusters, "hyperfleet_adapter_events_processed_total", "success")
		}
		before, from := done(), time.Now()
		sent := w.flood(ids)

		w.eventually("the adapter is through", func() string {
			if left := before + sent - done(); left > 0 {
				return fmt.Sprintf("%.0f events are left", left)
			}

			return ""
		})
		w.sayf("events without a change, %s: %.0f a second", filepath.Base(task), sent/time.Since(from).Seconds())
	}
}

// flood sends events of each cluster, and gives their number.
func (w *world) flood(ids map[string]string) float64 {
	w.t.Helper()

	const rounds = 60

	to, err := broker.Open(w.t.Context(), platform.Broker{
		Type: platform.BrokerRabbitMQ, RabbitMQ: platform.BrokerRabbit{URLFile: filepath.Join(w.dir, "rabbitmq-url")},
	}, nil, nil)
	w.must(err)

	defer func() { w.must(to.Close(context.WithoutCancel(w.t.Context()))) }()

	all := make([]string, 0, rounds*len(ids))
	for range rounds {
		for id := range ids {
			all = append(all, id)
		}
	}

	var serial atomic.Int64

	each(all, func(id string) {
		event := cloudevents.NewEvent()
		event.SetID(uuid.NewString())
		event.SetSource(events.Source)
		event.SetType(events.TypePrefix + "cluster" + events.TypeSuffix)
		event.SetExtension(events.PartitionKey, id)

		// Events that say the same as the one before them would be folded into it.
		data := map[string]any{"id": id, "kind": "Cluster", "name": ids[id], "generation": 1, "serial": serial.Add(1)}
		if err := event.SetData(events.ContentType, data); err != nil {
			w.t.Error(err)
		}

		if err := to.Publish(w.t.Context(), "clusters", event); err != nil {
			w.t.Error(err)
		}
	})

	return float64(len(all))
}
