// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"fmt"
	"maps"
	"net/http"
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

// unwatched is for how long nobody looks at the chain.
const unwatched = 3 * time.Second

// How long a hundred clusters take through the whole chain, all at once, with the cadences
// as they are by default; and where the time goes. Nothing fails for being slow.
func TestNumbers(t *testing.T) {
	if testing.Short() {
		t.Skip("make e2e-platform measures")
	}

	for name, rabbit := range map[string]bool{"feed": false, "rabbitmq": true} {
		t.Run(name, func(t *testing.T) { testNumbers(t, setup{rabbit: rabbit}) })
	}
}

func testNumbers(t *testing.T, s setup) {
	t.Helper()

	const clusters = 100

	w := newWorld(t, s)
	w.start(w.chain()...)

	w.create("/clusters", resource{Name: "warm", Spec: map[string]any{}})
	w.settled("the chain is warm")

	cpu := w.cpu()
	names := make([]string, clusters)
	began, ids := map[string]time.Time{}, map[string]string{}

	var mu sync.Mutex

	for i := range names {
		names[i] = fmt.Sprintf("fast-%02d", i)
	}

	each(names, func(name string) {
		from := time.Now()
		id := w.create("/clusters", resource{Name: name, Spec: map[string]any{"tier": "gold"}})

		mu.Lock()
		defer mu.Unlock()

		began[id], ids[id] = from, name
	})
	w.sayf("%d clusters were asked for", clusters)
	// Who looks takes from what is measured.
	time.Sleep(unwatched)
	w.settled("all are reconciled")
	w.tell("create to reconciled", began, w.reconciled)
	w.links()

	for _, name := range w.chain() {
		w.sayf("%s took %.2fs of a core", name, w.cpu()[name]-cpu[name])
	}

	whole := latest(w, ids).Sub(slices.MinFunc(slices.Collect(maps.Values(began)), time.Time.Compare))
	floor := w.byHand("warm", clusters)
	w.sayf("from the first request to the last one reconciled %s: %.1f times the %s that their objects take made by hand",
		whole.Round(time.Millisecond), whole.Seconds()/floor.Seconds(), floor.Round(time.Millisecond))

	w.deleteAll(ids)
	w.deleteByHand(clusters)
}

// byHand makes the objects of a cluster n times under other names, with as many clients as
// write to the API, and says how long the API server took: the floor for whoever has
// clusters made, on this machine as fast as it is now.
func (w *world) byHand(cluster string, n int) time.Duration {
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
		// Without the marks of their owner: nobody is to take them for his.
		return metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: like.Annotations}
	}
	names := make([]string, n)

	for i := range names {
		names[i] = fmt.Sprintf("by-hand-%02d", i)
	}

	began := time.Now()

	each(names, func(name string) {
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
				w.t.Errorf("make %s by hand: %v", name, err)
			}
		}
	})

	return time.Since(began)
}

// latest is when the last of the resources was reconciled.
func latest(w *world, ids map[string]string) time.Time {
	var last time.Time

	for id := range ids {
		if at := w.reconciled(id); at.After(last) {
			last = at
		}
	}

	return last
}

// chain are the programs that a cluster goes through.
func (w *world) chain() []string {
	if w.broker == nil {
		return []string{progAPI, progClusters}
	}

	return []string{progAPI, progSentinel, progClusters}
}

// cpu is what the programs of the chain have taken, in seconds of one core. The rest of
// the machine is PostgreSQL's, the broker's, the API server's and etcd's.
func (w *world) cpu() map[string]float64 {
	out := map[string]float64{}

	for _, name := range w.chain() {
		out[name] = w.metric(name, "process_cpu_seconds_total", "")
	}

	return out
}

// How many events an adapter handles that nothing is to be done for.
func TestNoChange(t *testing.T) {
	const clusters = 50

	w := newWorld(t, setup{rabbit: true})
	w.start(w.chain()...)

	names, ids := make([]string, clusters), map[string]string{}

	var mu sync.Mutex

	for i := range names {
		names[i] = fmt.Sprintf("idle-%02d", i)
	}

	each(names, func(name string) {
		id := w.create("/clusters", resource{Name: name, Spec: map[string]any{}})

		mu.Lock()
		defer mu.Unlock()

		ids[id] = name
	})
	w.settled("all are reconciled")
	w.noChange(ids, w.apiLimit(ids))
}

// deleteAll deletes clusters, and prints how long it took, from the request and from when
// the last of what was made for each was gone, its namespace.
func (w *world) deleteAll(ids map[string]string) {
	feed, spaces := w.watch(), w.watchSpaces()

	var mu sync.Mutex

	began := map[string]time.Time{}

	each(slices.Collect(maps.Keys(ids)), func(id string) {
		from := time.Now()

		w.send(http.MethodDelete, "/clusters/"+id, nil)

		mu.Lock()
		defer mu.Unlock()

		began[id] = from
	})
	w.eventually("all are gone", func() string {
		if left := len(w.list("clusters", "")); left > 1 {
			return fmt.Sprintf("%d clusters are left", left)
		}

		return ""
	})
	w.tell("delete to gone", began, feed.removed)

	for id := range began {
		if began[id] = spaces.removed("cluster-" + ids[id]); began[id].IsZero() {
			w.t.Fatalf("nobody saw that the namespace of %s was gone", ids[id])
		}
	}

	w.tell("of this from the end of its namespace", began, feed.removed)
}

// deleteByHand deletes the namespaces that byHand has made: how long what clusters have on
// Kubernetes takes to go there, by its own controllers.
func (w *world) deleteByHand(n int) {
	spaces, began := w.watchSpaces(), map[string]time.Time{}

	var mu sync.Mutex

	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("by-hand-%02d", i)
	}

	each(names, func(name string) {
		mu.Lock()
		began[name] = time.Now()
		mu.Unlock()

		if err := w.kube.Client.Delete(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			w.t.Errorf("delete %s by hand: %v", name, err)
		}
	})
	w.eventually("the namespaces are gone", func() string {
		for _, name := range names {
			if spaces.removed(name).IsZero() {
				return name + " is left"
			}
		}

		return ""
	})
	w.tell("the same namespaces, deleted by hand", began, spaces.removed)
}

// watchSpaces follows namespaces until the test's end.
func (w *world) watchSpaces() *seen {
	s := &seen{at: map[string]time.Time{}}

	watching, err := kubeclient.NewWithWatch(w.kube.Config, kubeclient.Options{})
	w.must(err)

	told, err := watching.Watch(w.t.Context(), &corev1.NamespaceList{})
	w.must(err)

	go func() {
		for event := range told.ResultChan() {
			if space, ok := event.Object.(*corev1.Namespace); ok && event.Type == watch.Deleted {
				s.note(space.Name, time.Now())
			}
		}
	}()

	return s
}

// seen is when it was told that something was removed, by its id or name.
type seen struct {
	mu sync.Mutex
	at map[string]time.Time
}

// watch follows the change feed until the test's end.
func (w *world) watch() *seen {
	s := &seen{at: map[string]time.Time{}}

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
					s.note(change.Id, time.Now())
				}
			}
		}
	}()

	return s
}

func (s *seen) note(what string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.at[what] = now
}

// reconciled is when the API says that the resource was.
func (w *world) reconciled(id string) time.Time {
	r, err := w.api.Get(w.t.Context(), id)
	w.must(err)

	for _, c := range r.Status.Conditions {
		if c.Type == "Reconciled" {
			return c.LastTransitionTime
		}
	}

	return time.Time{}
}

func (s *seen) removed(what string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.at[what]
}

// tell prints how long things took from their request.
func (w *world) tell(what string, began map[string]time.Time, ended func(id string) time.Time) {
	took := make([]time.Duration, 0, len(began))

	for id, from := range began {
		if at := ended(id); !at.IsZero() {
			took = append(took, at.Sub(from))
		}
	}

	if len(took) == 0 {
		w.t.Errorf("%s: nobody saw one", what)

		return
	}

	slices.Sort(took)

	at := func(share float64) time.Duration {
		return took[min(int(share*float64(len(took))), len(took)-1)].Round(time.Millisecond)
	}
	w.sayf("%s, %d: p50 %s, p95 %s, longest %s", what, len(took), at(0.5), at(0.95), at(1))
}

// links prints what each link of the chain takes by its own metrics, on average.
func (w *world) links() {
	average := func(name, metric, labels string) string {
		sum, count := w.metric(name, metric+"_sum", labels), w.metric(name, metric+"_count", labels)
		if count == 0 {
			return "none"
		}

		return fmt.Sprintf("%.1fms of %.0f", 1000*sum/count, count)
	}

	w.sayf("api: POST %s, status PUT %s, list %s, get %s",
		average(progAPI, "hyperfleet_api_request_duration_seconds", `method="POST"`),
		average(progAPI, "hyperfleet_api_request_duration_seconds", `/statuses"`),
		average(progAPI, "hyperfleet_api_request_duration_seconds", `method="GET",path="/api/hyperfleet/v1/clusters"`),
		average(progAPI, "hyperfleet_api_request_duration_seconds", `method="GET",path="/api/hyperfleet/v1/clusters/-"`))
	w.sayf("adapter: event %s, kubernetes call %s",
		average(progClusters, "hyperfleet_adapter_event_processing_duration_seconds", ""),
		average(progClusters, "hyperfleet_external_call_duration_seconds", `system="kubernetes"`))
}
