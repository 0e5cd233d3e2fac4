// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
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
	"github.com/hyperfleet/hyperfleet/platform/adapter/httpcall"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
)

// What 5,000 reconciled clusters cost Sentinel: at rest, while it lists them all again, and
// so on average at the interval that it has by default.
func TestAtRest(t *testing.T) {
	const (
		clusters = 5000
		interval = 15 * time.Second
		// resting ends before the list begins, listing before it ends.
		resting = 10 * time.Second
		listing = 20 * time.Second
	)

	if testing.Short() {
		t.Skip("make e2e-platform measures; platform/sentinel has rest without a program")
	}

	w := newWorld(t, setup{rabbit: true, pace: []string{"RELIST_INTERVAL=" + interval.String()}})
	w.start(progAPI)
	w.reconcileAll(clusters)

	from := time.Now()

	w.start(progSentinel)
	w.eventually("Sentinel knows them and leads", func() string {
		if w.metric(progSentinel, metricKnown, "") == clusters && w.metric(progSentinel, "hyperfleet_sentinel_leader", "") == 1 {
			return ""
		}

		return "it does not"
	})

	if late := time.Since(from); late < interval-resting {
		pages, resident := w.observe(resting)
		w.sayf("Sentinel with %d at rest: %.2f pages a second, %.0f MiB resident", clusters, pages, resident)

		if pages > 0 {
			t.Errorf("%.2f pages a second are read while nothing changes and no list is due", pages)
		}
	} else {
		w.sayf("the machine is too busy to tell rest from the list: it took %s to begin", late.Round(time.Second))
	}

	listed := w.metric(progSentinel, metricPages, "")
	w.eventually("it lists all again", func() string {
		if w.metric(progSentinel, metricPages, "") > listed {
			return ""
		}

		return "no page is read"
	})

	pages, resident := w.observe(listing)
	conf := sentinel.Defaults()
	all := math.Ceil(float64(clusters) / float64(conf.PageSize))
	w.sayf("while it lists them again: %.2f pages a second (most: 1), %.0f MiB resident (most: 60)", pages, resident)

	if pages == 0 || pages > 1.5 {
		t.Errorf("%.2f pages a second are read while it lists all again, want one", pages)
	} else {
		w.sayf("with the default relist_interval of %s: %.2f pages a second on average (most: 0.1)",
			conf.RelistInterval, all/(conf.RelistInterval.Seconds()+all/pages))
	}

	if sent := w.metric(progSentinel, "hyperfleet_sentinel_events_published_total", ""); sent != 0 {
		t.Errorf("%.0f events were sent of resources that nobody has to look at", sent)
	}
}

const (
	metricKnown = "hyperfleet_sentinel_known_resources"
	metricPages = "hyperfleet_sentinel_list_pages_total"
)

// reconcileAll makes clusters, and reports on each as the adapter would.
func (w *world) reconcileAll(clusters int) {
	w.t.Helper()

	names := make([]string, clusters)
	for i := range names {
		names[i] = fmt.Sprintf("rest-%04d", i)
	}

	each(names, func(name string) {
		id := w.create("/clusters", resource{Name: name, Labels: map[string]string{"tier": "gold"}, Spec: map[string]any{"pods": 10}})
		if status := w.report(id); status != http.StatusCreated {
			w.t.Errorf("report on %s: status %d", name, status)
		}
	})
	w.sayf("%d clusters are reconciled", clusters)
}

// report sends what the adapter sends of a cluster that is well.
func (w *world) report(id string) int {
	status, _ := w.send(http.MethodPut, "/clusters/"+id+"/statuses", said())

	return status
}

// said is what the adapter says of a cluster that is well.
func said() map[string]any {
	return map[string]any{
		"adapter": "cluster-space", "observed_generation": 1, "observed_time": time.Now(),
		"conditions": []map[string]string{
			{"type": "Available", "status": "True"}, {"type": "Applied", "status": "True"}, {"type": "Health", "status": "True"},
		},
	}
}

// observe looks at Sentinel once a second for as long as it says: at the pages that it
// reads in a second, and at the most memory that it has, in MiB.
func (w *world) observe(during time.Duration) (pages, resident float64) {
	w.t.Helper()

	before, from := w.metric(progSentinel, metricPages, ""), time.Now()

	for range int(during / time.Second) {
		time.Sleep(time.Second)

		resident = max(resident, w.metric(progSentinel, "process_resident_memory_bytes", "")/(1<<20))
	}

	took := time.Since(from)
	if took < during || resident == 0 {
		w.t.Errorf("Sentinel was looked at for %s, want %s; it has %.0f MiB", took, during, resident)
	}

	return (w.metric(progSentinel, metricPages, "") - before) / took.Seconds(), resident
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

// noChange sends events of clusters that nothing is to be done for straight to the broker,
// and prints how many of them an adapter handles in a second, and which share that is of what
// the API alone gives: with the sample's task file, which reads the cluster and reports, and
// with the least that keeps an object.
func (w *world) noChange(ids map[string]string, alone limits) {
	w.t.Helper()

	for _, one := range []struct {
		file  string
		limit float64
	}{{"clusters/task.yaml", alone.pairs}, {"lean.yaml", alone.reads}} {
		file, limit := one.file, one.limit
		if file == "lean.yaml" {
			w.write(file, lean)
			// In order: after a crash, RabbitMQ takes a while to see that its queue is free.
			w.must(w.programs[progClusters].process.Stop())

			args := w.programs[progClusters].args
			w.programs[progClusters].args = strings.Split(strings.Replace(strings.Join(args, " "), "clusters/task.yaml", file, 1), " ")
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

		pace := sent / time.Since(from).Seconds()
		w.sayf("events without a change, %s: %.0f a second, %.2f of the API's own %.0f", filepath.Base(file), pace, pace/limit, limit)
	}
}

// limits is what the API itself gives in a second, to as many clients as an adapter handles
// events with, and with the adapter's own code: clusters that are read and reported on, which is
// what the sample's task file asks for each event, and reads alone, which every event needs.
type limits struct{ pairs, reads float64 }

func (w *world) apiLimit(ids map[string]string) (out limits) {
	w.t.Helper()

	api := task.NewDeploymentSpec(false).Default.Clients.HyperFleetAPI
	api.BaseURL = w.base

	calls, err := httpcall.New(httpcall.Options{API: api})
	w.must(err)

	out.pairs = w.pace(ids, func(id string) error {
		if _, err := calls.Do(w.t.Context(), httpcall.Request{URL: "clusters/" + id}); err != nil {
			return err
		}

		body, err := json.Marshal(said())
		if err != nil {
			return err
		}

		_, err = calls.Do(w.t.Context(), httpcall.Request{
			Method: http.MethodPut, URL: "clusters/" + id + "/statuses", Body: string(body),
		})

		return err
	})
	out.reads = w.pace(ids, func(id string) error {
		_, err := w.api.Get(w.t.Context(), id)

		return err
	})
	w.sayf("the API alone, by the adapter's clients: a read and a report %.0f a second, a read %.0f", out.pairs, out.reads)

	return out
}

// pace is how often something is done in a second, for each cluster in turn.
func (w *world) pace(ids map[string]string, do func(id string) error) float64 {
	const rounds = 40

	all := make([]string, 0, rounds*len(ids))
	for range rounds {
		all = slices.AppendSeq(all, maps.Keys(ids))
	}

	from := time.Now()

	each(all, func(id string) {
		if err := do(id); err != nil {
			w.t.Error(err)
		}
	})

	return float64(len(all)) / time.Since(from).Seconds()
}

// flood sends events of each cluster, and gives their number.
func (w *world) flood(ids map[string]string) float64 {
	w.t.Helper()

	const rounds = 60

	to, err := broker.Open(w.t.Context(), platform.Broker{
		Type: platform.BrokerRabbitMQ, RabbitMQ: platform.BrokerRabbit{URLFile: filepath.Join(w.dir, "rabbitmq-url")},
	}, nil, nil)
	w.must(err)

	defer to.Close()

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
