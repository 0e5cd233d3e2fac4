// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/platform/client"
)

// undisturbedTime is how long the test sends no requests, because they would take CPU time from the
// measured programs.
const undisturbedTime = 3 * time.Second

// envNumbersBefore is the environment variable with a checkout of an earlier version (options.checkout), which TestNumbers
// then measures, too. The tests of that checkout would measure it with other servers, for example without the controller of
// quotas, which also uses the processors.
const envNumbersBefore = "NUMBERS_BEFORE"

// TestNumbers measures how long a hundred clusters that are created at the same time take from the request
// to Reconciled, with the default intervals, and where the time goes. The test does not fail if they are
// slow.
func TestNumbers(t *testing.T) {
	if testing.Short() {
		t.Skip("make e2e-platform measures")
	}

	for name, rabbit := range map[string]bool{"feed": false, "rabbitmq": true} {
		t.Run(name, func(t *testing.T) { testNumbers(t, options{useRabbitMQ: rabbit}) })

		if before := os.Getenv(envNumbersBefore); before != "" {
			t.Run(name+" before", func(t *testing.T) { testNumbers(t, options{useRabbitMQ: rabbit, checkout: before}) })
		}
	}
}

func testNumbers(t *testing.T, s options) {
	t.Helper()

	const clusters = 100

	w := newFixture(t, s)
	w.startPrograms(w.listMeasuredPrograms()...)

	w.createResource("/clusters", resource{Name: "warm", Spec: map[string]any{}})
	w.waitUntilReconciled("the first cluster is reconciled")

	cpu := w.readCPUSeconds()
	names := make([]string, clusters)
	began, ids := map[string]time.Time{}, map[string]string{}

	var mu sync.Mutex

	for i := range names {
		names[i] = fmt.Sprintf("fast-%02d", i)
	}

	forEachParallel(names, func(name string) {
		from := time.Now()
		id := w.createResource("/clusters", resource{Name: name, Spec: map[string]any{"tier": "gold"}})

		mu.Lock()
		defer mu.Unlock()

		began[id], ids[id] = from, name
	})
	w.logf("requested %d clusters", clusters)
	time.Sleep(undisturbedTime)
	w.waitUntilReconciled("all clusters are reconciled")
	w.logDurations("create to reconciled", began, w.getReconciledTime)
	w.logAverageDurations()

	for _, name := range w.listMeasuredPrograms() {
		w.logf("%s used %.2f s of CPU time", name, w.readCPUSeconds()[name]-cpu[name])
	}

	total := findLastReconciledTime(w, ids).Sub(slices.MinFunc(slices.Collect(maps.Values(began)), time.Time.Compare))
	floor := w.createByHand("warm", clusters)
	w.logf("from the first request until the last cluster is reconciled: %s, %.1f times the %s to create the same objects by hand",
		total.Round(time.Millisecond), total.Seconds()/floor.Seconds(), floor.Round(time.Millisecond))

	w.measureDeletion(ids)
	w.measureDeletionByHand(clusters)
}

// createByHand creates the objects of a cluster n times under other names, with as many clients as send
// requests to the API. It returns the time that the API server needed, with which the platform is compared.
func (w *fixture) createByHand(cluster string, n int) time.Duration {
	w.t.Helper()

	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "cluster-" + cluster}}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "cluster", Namespace: space.Name}}
	jobs := &batchv1.JobList{}

	w.must(w.kube.Client.Get(w.t.Context(), kubeclient.ObjectKeyFromObject(space), space))
	w.must(w.kube.Client.Get(w.t.Context(), kubeclient.ObjectKeyFromObject(quota), quota))
	w.must(w.kube.Client.List(w.t.Context(), jobs, kubeclient.InNamespace(space.Name)))

	if len(jobs.Items) != 1 {
		w.t.Fatalf("cluster %s has %d jobs", cluster, len(jobs.Items))
	}

	meta := func(like *metav1.ObjectMeta, name, namespace string) metav1.ObjectMeta {
		// Without the labels of the adapter, because it would otherwise manage these objects.
		return metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: like.Annotations}
	}
	names := make([]string, n)

	for i := range names {
		names[i] = fmt.Sprintf("by-hand-%02d", i)
	}

	began := time.Now()

	forEachParallel(names, func(name string) {
		template := *jobs.Items[0].Spec.Template.DeepCopy()
		template.Labels = nil

		for _, object := range []kubeclient.Object{
			&corev1.Namespace{ObjectMeta: meta(&space.ObjectMeta, name, "")},
			&corev1.ResourceQuota{ObjectMeta: meta(&quota.ObjectMeta, quota.Name, name), Spec: quota.Spec},
			&batchv1.Job{
				ObjectMeta: meta(&jobs.Items[0].ObjectMeta, jobs.Items[0].Name, name), Spec: batchv1.JobSpec{Template: template},
			},
		} {
			if err := w.kube.Client.Create(w.t.Context(), object); err != nil {
				w.t.Errorf("create %s by hand: %v", name, err)
			}
		}
	})

	return time.Since(began)
}

// findLastReconciledTime returns the time at which the last of the resources was reconciled.
func findLastReconciledTime(w *fixture, ids map[string]string) time.Time {
	var last time.Time

	for id := range ids {
		if at := w.getReconciledTime(id); at.After(last) {
			last = at
		}
	}

	return last
}

// listMeasuredPrograms returns the programs that process a change of a cluster.
func (w *fixture) listMeasuredPrograms() []string {
	if w.broker == nil {
		return []string{progAPI, progClusters}
	}

	return []string{progAPI, progSentinel, progClusters}
}

// readCPUSeconds returns the CPU time of the measured programs in seconds. PostgreSQL, the broker, the API
// server and etcd use the rest.
func (w *fixture) readCPUSeconds() map[string]float64 {
	out := map[string]float64{}

	for _, name := range w.listMeasuredPrograms() {
		out[name] = w.sumMetric(name, "process_cpu_seconds_total", "")
	}

	return out
}

// TestNoChange measures how many events per second an adapter handles if no object has to change.
func TestNoChange(t *testing.T) {
	const clusters = 50

	w := newFixture(t, options{useRabbitMQ: true})
	w.startPrograms(w.listMeasuredPrograms()...)

	names, ids := make([]string, clusters), map[string]string{}

	var mu sync.Mutex

	for i := range names {
		names[i] = fmt.Sprintf("idle-%02d", i)
	}

	forEachParallel(names, func(name string) {
		id := w.createResource("/clusters", resource{Name: name, Spec: map[string]any{}})

		mu.Lock()
		defer mu.Unlock()

		ids[id] = name
	})
	w.waitUntilReconciled("all clusters are reconciled")
	w.measureUnchangedEvents(ids, w.measureAPIRates(ids))
}

// measureDeletion deletes clusters, and logs how long it took from the request, and from the deletion of
// the namespace, which is each cluster's last object.
func (w *fixture) measureDeletion(ids map[string]string) {
	feed, spaces := w.watchResourceRemovals(), w.watchNamespaceDeletions()

	var mu sync.Mutex

	began := map[string]time.Time{}

	forEachParallel(slices.Collect(maps.Keys(ids)), func(id string) {
		from := time.Now()

		w.sendWithRetries(http.MethodDelete, "/clusters/"+id, nil)

		mu.Lock()
		defer mu.Unlock()

		began[id] = from
	})
	w.eventually("all clusters are gone", func() string {
		if left := len(w.listResources("clusters", "")); left > 1 {
			return fmt.Sprintf("%d clusters still exist", left)
		}

		return ""
	})
	w.logDurations("delete to gone", began, feed.timeOf)

	for id := range began {
		if began[id] = spaces.timeOf("cluster-" + ids[id]); began[id].IsZero() {
			w.t.Fatalf("the watch did not report the deletion of the namespace of %s", ids[id])
		}
	}

	w.logDurations("of this after the deletion of the namespace", began, feed.timeOf)
}

// measureDeletionByHand deletes the namespaces that createByHand created, and logs how long Kubernetes' own
// controllers take.
func (w *fixture) measureDeletionByHand(n int) {
	spaces, began := w.watchNamespaceDeletions(), map[string]time.Time{}

	var mu sync.Mutex

	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("by-hand-%02d", i)
	}

	forEachParallel(names, func(name string) {
		mu.Lock()
		began[name] = time.Now()
		mu.Unlock()

		if err := w.kube.Client.Delete(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			w.t.Errorf("delete %s by hand: %v", name, err)
		}
	})
	w.eventually("the namespaces are gone", func() string {
		for _, name := range names {
			if spaces.timeOf(name).IsZero() {
				return name + " still exists"
			}
		}

		return ""
	})
	w.logDurations("the same namespaces, deleted by hand", began, spaces.timeOf)
}

// watchNamespaceDeletions records the deletions of namespaces until the end of the test.
func (w *fixture) watchNamespaceDeletions() *removals {
	s := &removals{times: map[string]time.Time{}}

	watching, err := kubeclient.NewWithWatch(w.kube.Config, kubeclient.Options{})
	w.must(err)

	watcher, err := watching.Watch(w.t.Context(), &corev1.NamespaceList{})
	w.must(err)

	go func() {
		for event := range watcher.ResultChan() {
			if space, ok := event.Object.(*corev1.Namespace); ok && event.Type == watch.Deleted {
				s.record(space.Name, time.Now())
			}
		}
	}()

	return s
}

// removals has the times at which resources or namespaces were removed, by ID or name.
type removals struct {
	mu    sync.Mutex
	times map[string]time.Time
}

// watchResourceRemovals follows the change feed until the end of the test, and records removed resources.
func (w *fixture) watchResourceRemovals() *removals {
	s := &removals{times: map[string]time.Time{}}

	start, err := w.api.Changes(w.t.Context(), "", "", 0)
	w.must(err)

	cursor := start.Next

	go func() {
		for w.t.Context().Err() == nil {
			changes, err := w.api.Changes(w.t.Context(), cursor, "", client.MaxWait)
			if err != nil {
				continue
			}

			cursor = changes.Next

			for _, change := range changes.Items {
				if change.Operation == "removed" {
					s.record(change.Id, time.Now())
				}
			}
		}
	}()

	return s
}

func (s *removals) record(what string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.times[what] = now
}

// getReconciledTime returns the time of the transition of the condition Reconciled.
func (w *fixture) getReconciledTime(id string) time.Time {
	r, err := w.api.Get(w.t.Context(), id)
	w.must(err)

	for _, c := range r.Status.Conditions {
		if c.Type == "Reconciled" {
			return c.LastTransitionTime
		}
	}

	return time.Time{}
}

func (s *removals) timeOf(what string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.times[what]
}

// logDurations logs percentiles of the times between start and end.
func (w *fixture) logDurations(what string, began map[string]time.Time, ended func(id string) time.Time) {
	took := make([]time.Duration, 0, len(began))

	for id, from := range began {
		if at := ended(id); !at.IsZero() {
			took = append(took, at.Sub(from))
		}
	}

	if len(took) == 0 {
		w.t.Errorf("%s: no end was recorded", what)

		return
	}

	slices.Sort(took)

	at := func(share float64) time.Duration {
		return took[min(int(share*float64(len(took))), len(took)-1)].Round(time.Millisecond)
	}
	w.logf("%s, %d: p50 %s, p95 %s, longest %s", what, len(took), at(0.5), at(0.95), at(1))
}

// logAverageDurations logs the average durations of requests and events, according to the metrics of the
// programs.
func (w *fixture) logAverageDurations() {
	average := func(name, metric, labels string) string {
		sum, count := w.sumMetric(name, metric+"_sum", labels), w.sumMetric(name, metric+"_count", labels)
		if count == 0 {
			return "none"
		}

		return fmt.Sprintf("%.1fms of %.0f", 1000*sum/count, count)
	}

	w.logf("api: POST %s, status PUT %s, list %s, get %s",
		average(progAPI, "hyperfleet_api_request_duration_seconds", `method="POST"`),
		average(progAPI, "hyperfleet_api_request_duration_seconds", `/statuses"`),
		average(progAPI, "hyperfleet_api_request_duration_seconds", `method="GET",path="/api/hyperfleet/v1/clusters"`),
		average(progAPI, "hyperfleet_api_request_duration_seconds", `method="GET",path="/api/hyperfleet/v1/clusters/-"`))
	w.logf("adapter: event %s, kubernetes call %s",
		average(progClusters, "hyperfleet_adapter_event_processing_duration_seconds", ""),
		average(progClusters, "hyperfleet_external_call_duration_seconds", `system="kubernetes"`))
}
