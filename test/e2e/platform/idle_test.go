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
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
)

// TestAtRest measures the requests and the memory of Sentinel with 5,000 reconciled clusters: while it is
// idle, while it lists all of them again, and on average at the default interval.
func TestAtRest(t *testing.T) {
	const (
		clusters = 5000
		interval = 15 * time.Second
		// The measurement of resting ends before the list begins, and that of listing ends before the list
		// does.
		resting = 10 * time.Second
		listing = 20 * time.Second
	)

	if testing.Short() {
		t.Skip("make e2e-platform measures this; platform/sentinel tests it in a smaller form")
	}

	w := newFixture(t, options{useRabbitMQ: true, intervals: []string{"RELIST_INTERVAL=" + interval.String()}})
	w.startPrograms(progAPI)
	w.reconcileAll(clusters)

	from := time.Now()

	w.startPrograms(progSentinel)
	w.eventually("Sentinel knows all clusters and is the leader", func() string {
		if w.sumMetric(progSentinel, metricKnown, "") == clusters && w.sumMetric(progSentinel, "hyperfleet_sentinel_leader", "") == 1 {
			return ""
		}

		return "not yet"
	})

	if late := time.Since(from); late < interval-resting {
		pages, resident := w.measureSentinel(resting)
		w.logf("idle Sentinel with %d clusters: %.2f pages a second, %.0f MiB resident", clusters, pages, resident)

		if pages > 0 {
			t.Errorf("Sentinel reads %.2f pages a second although nothing changes and no list is due", pages)
		}
	} else {
		w.logf("not measured: Sentinel needed %s to start, so the next list is due", late.Round(time.Second))
	}

	listed := w.sumMetric(progSentinel, metricPages, "")
	w.eventually("Sentinel lists all clusters again", func() string {
		if w.sumMetric(progSentinel, metricPages, "") > listed {
			return ""
		}

		return "no page was read"
	})

	pages, resident := w.measureSentinel(listing)
	conf := sentinel.Defaults()
	all := math.Ceil(float64(clusters) / float64(conf.PageSize))
	w.logf("while Sentinel lists them again: %.2f pages a second (most: 1), %.0f MiB resident (most: 60)", pages, resident)

	if pages == 0 || pages > 1.5 {
		t.Errorf("Sentinel reads %.2f pages a second while it lists all clusters, want one", pages)
	} else {
		w.logf("with the default relist_interval of %s: %.2f pages a second on average (most: 0.1)",
			conf.RelistInterval, all/(conf.RelistInterval.Seconds()+all/pages))
	}

	if sent := w.sumMetric(progSentinel, "hyperfleet_sentinel_events_published_total", ""); sent != 0 {
		t.Errorf("Sentinel published %.0f events of reconciled resources, want none", sent)
	}
}

const (
	metricKnown = "hyperfleet_sentinel_known_resources"
	metricPages = "hyperfleet_sentinel_list_pages_total"
)

// reconcileAll creates clusters, and reports a status for each as the adapter would.
func (w *fixture) reconcileAll(clusters int) {
	w.t.Helper()

	names := make([]string, clusters)
	for i := range names {
		names[i] = fmt.Sprintf("rest-%04d", i)
	}

	forEachParallel(names, func(name string) {
		id := w.createResource("/clusters", resource{Name: name, Labels: map[string]string{"tier": "gold"}, Spec: map[string]any{"pods": 10}})
		if status := w.reportStatus(id); status != http.StatusCreated {
			w.t.Errorf("report on %s: status %d", name, status)
		}
	})
	w.logf("%d clusters are reconciled", clusters)
}

// reportStatus sends the status report of an available cluster.
func (w *fixture) reportStatus(id string) int {
	status, _ := w.sendWithRetries(http.MethodPut, "/clusters/"+id+"/statuses", newStatusReport())

	return status
}

// newStatusReport returns the report that the adapter sends for an available cluster.
func newStatusReport() map[string]any {
	return map[string]any{
		"adapter": "cluster-space", "observed_generation": 1, "observed_time": time.Now(),
		"conditions": []map[string]string{
			{"type": "Available", "status": "True"}, {"type": "Applied", "status": "True"}, {"type": "Health", "status": "True"},
		},
	}
}

// measureSentinel reads Sentinel's metrics once a second. It returns the pages that Sentinel reads per
// second, and its highest memory in MiB.
func (w *fixture) measureSentinel(during time.Duration) (pages, resident float64) {
	w.t.Helper()

	before, from := w.sumMetric(progSentinel, metricPages, ""), time.Now()

	for range int(during / time.Second) {
		time.Sleep(time.Second)

		resident = max(resident, w.sumMetric(progSentinel, "process_resident_memory_bytes", "")/(1<<20))
	}

	took := time.Since(from)
	if took < during || resident == 0 {
		w.t.Errorf("Sentinel was measured for %s, want %s; it has %.0f MiB", took, during, resident)
	}

	return (w.sumMetric(progSentinel, metricPages, "") - before) / took.Seconds(), resident
}

// minimalTask is the smallest task file that manages an object. It makes no API calls.
const minimalTask = `
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

// measureUnchangedEvents publishes events of clusters whose objects are up to date directly to the broker.
// It logs how many events per second the adapter handles, also as a share of the rate of the API alone. It
// measures the task file of the samples, which reads the cluster and reports its status, and the minimal
// task.
func (w *fixture) measureUnchangedEvents(ids map[string]string, alone apiRates) {
	w.t.Helper()

	for _, one := range []struct {
		file  string
		limit float64
	}{{"clusters/task.yaml", alone.readAndReport}, {"lean.yaml", alone.reads}} {
		file, limit := one.file, one.limit
		if file == "lean.yaml" {
			w.writeFile(file, minimalTask)
			// Stop instead of kill, because RabbitMQ detects a crashed consumer only after a while.
			w.must(w.programs[progClusters].process.Stop())

			args := w.programs[progClusters].args
			w.programs[progClusters].args = strings.Split(strings.Replace(strings.Join(args, " "), "clusters/task.yaml", file, 1), " ")
			w.startPrograms(progClusters)
		}

		done := func() float64 {
			return w.sumMetric(progClusters, "hyperfleet_adapter_events_processed_total", "success")
		}
		before, from := done(), time.Now()
		sent := w.publishEvents(ids)

		w.eventually("the adapter has handled all events", func() string {
			if left := before + sent - done(); left > 0 {
				return fmt.Sprintf("%.0f events are not handled", left)
			}

			return ""
		})

		pace := sent / time.Since(from).Seconds()
		w.logf("events without a change, %s: %.0f a second, %.2f of the %.0f of the API alone", filepath.Base(file), pace, pace/limit, limit)
	}
}

// apiRates are the rates of the API alone, with the adapter's client code and as many clients as the
// adapter has handlers: a read and a status report for each event, as the task file of the samples makes
// them, and only a read, which every event needs.
type apiRates struct{ readAndReport, reads float64 }

func (w *fixture) measureAPIRates(ids map[string]string) (out apiRates) {
	w.t.Helper()

	deployment := task.NewDeploymentSpec(task.FileOptional).Default
	deployment.Clients.HyperFleetAPI.BaseURL = w.apiURL

	calls, err := pipeline.NewAPIClient(&deployment, client.Options{})
	w.must(err)

	out.readAndReport = w.measureRate(ids, func(id string) error {
		if _, err := calls.Call(w.t.Context(), client.Call{URL: "clusters/" + id}); err != nil {
			return err
		}

		body, err := json.Marshal(newStatusReport())
		if err != nil {
			return err
		}

		_, err = calls.Call(w.t.Context(), client.Call{
			Method: http.MethodPut, URL: "clusters/" + id + "/statuses", Body: string(body),
		})

		return err
	})
	out.reads = w.measureRate(ids, func(id string) error {
		_, err := w.api.Get(w.t.Context(), id)

		return err
	})
	w.logf("the API alone, with the adapter's clients: %.0f reads with reports a second, %.0f reads", out.readAndReport, out.reads)

	return out
}

// measureRate returns how often per second do is called, for each cluster several times.
func (w *fixture) measureRate(ids map[string]string, do func(id string) error) float64 {
	const rounds = 40

	all := make([]string, 0, rounds*len(ids))
	for range rounds {
		all = slices.AppendSeq(all, maps.Keys(ids))
	}

	from := time.Now()

	forEachParallel(all, func(id string) {
		if err := do(id); err != nil {
			w.t.Error(err)
		}
	})

	return float64(len(all)) / time.Since(from).Seconds()
}

// publishEvents publishes events of each cluster, and returns their number.
func (w *fixture) publishEvents(ids map[string]string) float64 {
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

	forEachParallel(all, func(id string) {
		event := cloudevents.NewEvent()
		event.SetID(uuid.NewString())
		event.SetSource(events.Source)
		event.SetType(events.TypePrefix + "cluster" + events.TypeSuffix)
		event.SetExtension(events.PartitionKey, id)

		// Without a serial number, the adapter would fold equal events into one.
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
