// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
	"github.com/hyperfleet/hyperfleet/sim/ocm"
	"github.com/hyperfleet/hyperfleet/sim/ocm/ocmtest"
)

// life is one cluster of the test with its two pools.
type life struct {
	name, id string
	pools    []string
	tier     string
	pods     string
	replicas string
}

// lives are all clusters, by what becomes of them.
type lives map[string][]*life

const (
	stays, drifts, kept, deleted, lost = "stay", "drift", "keep", "gone", "lost"

	poolsOfEach = 2
)

func newLives() lives {
	counts := map[string]int{stays: 40, drifts: 20, kept: 10, deleted: 20, lost: 10}
	if testing.Short() {
		counts = map[string]int{stays: 10, drifts: 5, kept: 3, deleted: 5, lost: 2}
	}

	out := lives{}

	for fate, count := range counts {
		for i := range count {
			out[fate] = append(out[fate], &life{name: fmt.Sprintf("%s-%02d", fate, i), tier: "silver", pods: "10", replicas: "1"})
		}
	}

	return out
}

func (l lives) all() []*life {
	return slices.Concat(l[stays], l[drifts], l[kept], l[deleted], l[lost])
}

// A hundred clusters (25 with -short) with two pools each, with every fate there is, while
// everything that takes part is killed in turn.
func TestHundredClusters(t *testing.T) {
	for name, rabbit := range map[string]bool{"feed": false, "rabbitmq": true} {
		t.Run(name, func(t *testing.T) { testHundredClusters(t, setup{rabbit: rabbit, agents: true, pace: quick()}) })
	}
}

func testHundredClusters(t *testing.T, s setup) {
	t.Helper()

	w := newWorld(t, s)
	l := newLives()

	w.neighbours()
	w.runJobs()
	w.start(append(w.platform(), progAgents)...)
	w.start(w.second())
	w.sayf("programs are up")

	w.createAll(l)
	w.copies(l)
	w.update(l)
	w.drift(l)
	w.remove(l)
	w.lose(l)

	w.settled("all that is left is reconciled")
	w.eventually("each object is what its resource says", func() string { return w.wrong(l) })

	if text := w.untouched(); text != "" {
		t.Errorf("somebody else's object was touched: %s", text)
	}
}

// neighbours plants what isn't ours, and makes what is there before the platform.
func (w *world) neighbours() {
	w.t.Helper()

	for _, name := range []string{site, agentsHome} {
		w.plant(&corev1.Namespace{ObjectMeta: named("", name, nil, nil)})
	}

	ocmtest.New(w.t, ocm.Options{Hub: w.kube.Config, Cluster: site, Interval: 5 * time.Second})

	forged := map[string]string{
		adapter.LabelAdapter: "cluster-space", adapter.LabelResourceID: uuid.NewString(), adapter.LabelResourceName: "space",
	}
	w.plant(&corev1.Namespace{ObjectMeta: named("", "plain", nil, nil)})
	w.plant(&corev1.Namespace{ObjectMeta: named("", "forged", forged, nil)})
	w.plant(&corev1.Secret{ObjectMeta: named("plain", "forged", forged, map[string]string{
		adapter.AnnotationIdentity: "v1.00000000.bm90IGFuIEhNQUM", adapter.AnnotationGeneration: "1",
	})})
	w.plant(&corev1.Namespace{ObjectMeta: named("", "another-adapter", map[string]string{
		adapter.LabelAdapter: "somebody-else", adapter.LabelResourceID: uuid.NewString(),
	}, nil)})
	w.plant(&corev1.ConfigMap{ObjectMeta: named("plain", "pool-first", nil, nil), Data: map[string]string{"replicas": "1"}})
}

// createAll makes all clusters and pools, while the adapter of clusters is killed.
func (w *world) createAll(l lives) {
	w.t.Helper()

	var killing sync.WaitGroup

	killing.Go(func() {
		time.Sleep(2 * time.Second)
		w.kill(progClusters)
		w.sayf("the adapter of clusters is killed")
	})

	each(l.all(), func(one *life) {
		labels := map[string]string{"fleet": "test"}
		if strings.HasPrefix(one.name, kept) {
			labels["keep"] = "true"
		}

		one.id = w.create("/clusters", resource{Name: one.name, Labels: labels, Spec: map[string]any{"tier": one.tier}})

		for _, pool := range []string{"first", "second"} {
			one.pools = append(one.pools, w.create("/clusters/"+one.id+"/nodepools",
				resource{Name: pool, Spec: map[string]any{"replicas": 1}}))
		}
	})
	killing.Wait()
	w.sayf("%d clusters with %d pools are made", len(l.all()), poolsOfEach*len(l.all()))
	w.start(progClusters)
	w.settled("all are reconciled")
}

// copies plants copies of objects of ours, with all their marks, under other names.
func (w *world) copies(l lives) {
	w.t.Helper()

	for _, from := range []*life{l[stays][0], l[deleted][0], l[lost][0]} {
		original := w.namespace(from.name)
		if original == nil {
			w.t.Fatalf("cluster %s has no namespace", from.name)

			return
		}

		marks := map[string]string{}

		for key, value := range original.Labels {
			if key != corev1.LabelMetadataName {
				marks[key] = value
			}
		}

		w.plant(&corev1.Namespace{ObjectMeta: named("", "copy-of-"+from.name, marks, original.Annotations)})
		w.plant(&corev1.ConfigMap{ObjectMeta: named("plain", "copy-of-"+from.name, marks, original.Annotations)})
	}
}

// second is a replica of the program that decides what clusters are looked at.
func (w *world) second() string {
	if w.broker != nil {
		return progSentinel2
	}

	return progClusters2
}

// first is the one that does so until it is killed.
func (w *world) first() string {
	if w.broker != nil {
		return progSentinel
	}

	return progClusters
}

// update changes clusters and pools, while what brings adapters the news is killed: the
// broker, or the API.
func (w *world) update(l lives) {
	w.t.Helper()

	var killing sync.WaitGroup

	killing.Go(func() {
		time.Sleep(lookAt)

		if w.broker != nil {
			w.broker.Kill(w.t)
			w.sayf("the broker is killed")

			return
		}

		w.kill(progAPI)
		w.sayf("the API is killed")
		w.start(progAPI)
	})

	each(l[stays], func(one *life) {
		one.tier, one.pods, one.replicas = "gold", "20", "5"

		w.send(http.MethodPatch, "/clusters/"+one.id, map[string]any{"spec": map[string]any{"tier": "gold", "pods": 20}})

		for _, id := range one.pools {
			w.send(http.MethodPatch, "/nodepools/"+id, map[string]any{"spec": map[string]any{"replicas": 5}})
		}
	})
	killing.Wait()

	if w.broker != nil {
		w.broker.Restart(w.t)
		w.sayf("the broker is back")
	}

	w.settled("all are reconciled at their new generation")
	w.eventually("objects are those of the new generation", func() string { return w.wrong(l) })
}

// drift changes objects by hand, while who decides what is looked at is killed.
func (w *world) drift(l lives) {
	w.t.Helper()

	for i, one := range l[drifts] {
		space := "cluster-" + one.name

		switch i % 5 {
		case 0:
			w.must(w.kube.Client.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: named(space, "pool-first", nil, nil)}))
		case 1:
			w.patch(w.namespace(one.name), `{"metadata":{"labels":{"example.io/tier":"mine"}}}`)
		case 2:
			w.patch(&corev1.ResourceQuota{ObjectMeta: named(space, "cluster", nil, nil)}, `{"spec":{"hard":{"pods":"1000"}}}`)
		case 3:
			w.patch(&corev1.ConfigMap{ObjectMeta: named(space, "pool-second", nil, nil)}, `{"data":{"replicas":"1000"}}`)
		default:
			work := &unstructured.Unstructured{}
			work.SetAPIVersion("work.open-cluster-management.io/v1")
			work.SetKind("ManifestWork")
			work.SetNamespace(site)
			work.SetName("agent-" + one.name)
			w.must(w.kube.Client.Delete(w.t.Context(), work))
		}
	}

	w.sayf("objects were changed by hand; %s is killed", w.first())
	w.kill(w.first())
	w.eventually("what was changed by hand is as it was", func() string { return w.wrong(l) })
	w.eventually("a job that failed has another", func() string { return w.retried(l) })
	w.start(w.first())
}

// retried says which cluster whose first job failed has none that did not.
func (w *world) retried(l lives) string {
	for _, one := range l[drifts] {
		jobs := &batchv1.JobList{}
		w.must(w.kube.Client.List(w.t.Context(), jobs, kubeclient.InNamespace("cluster-"+one.name)))

		if len(jobs.Items) < 2 {
			return one.name
		}
	}

	return ""
}

// remove deletes clusters, of which some leave their objects behind, while the API is
// killed.
func (w *world) remove(l lives) {
	w.t.Helper()

	var killing sync.WaitGroup

	killing.Go(func() {
		w.kill(progAPI)
		w.sayf("the API is killed")
		w.start(progAPI)
	})

	going := slices.Concat(l[deleted], l[kept])
	each(going, func(one *life) { w.send(http.MethodDelete, "/clusters/"+one.id, nil) })
	killing.Wait()
	w.sayf("%d clusters are deleted", len(going))

	w.eventually("the API has them no more", func() string {
		for _, one := range going {
			for _, id := range append([]string{one.id}, one.pools...) {
				if !w.gone(id) {
					return one.name + " is there"
				}
			}
		}

		return ""
	})
}

// lose removes clusters by force while their adapters are away, and sweeps.
func (w *world) lose(l lives) {
	w.t.Helper()

	adapters := []string{progClusters, progPools, progAgents}
	if w.broker == nil {
		adapters = append(adapters, w.second())
	}

	w.kill(adapters...)

	each(l[lost], func(one *life) {
		w.send(http.MethodDelete, "/clusters/"+one.id, nil)

		status, _ := w.send(http.MethodPost, "/clusters/"+one.id+"/force-delete", map[string]string{"reason": "the test says so"})
		if status != http.StatusNoContent {
			w.t.Errorf("force-delete %s: status %d", one.name, status)
		}
	})
	w.sayf("%d clusters are removed by force, without their adapters", len(l[lost]))
	w.start(adapters...)

	before := w.managed()
	for _, one := range l[lost] {
		if len(before[one.id]) == 0 {
			w.t.Errorf("nothing is left of %s to sweep", one.name)
		}
	}

	dry := w.sweep()
	if !dry.DryRun || dry.Outcomes[sweep.WouldDelete] == 0 || dry.Outcomes[sweep.Deleted] != 0 {
		w.t.Errorf("a dry run: %+v", dry.Outcomes)
	}

	report := w.sweep("--delete")
	w.sayf("swept: %v", report.Outcomes)

	marked := 0

	for _, s := range w.strangers {
		// Secrets are not among the kinds that sweep looks at.
		if _, secret := s.object.(*corev1.Secret); !secret && s.labels[adapter.LabelAdapter] != "" {
			marked++
		}
	}

	if report.Outcomes[sweep.Skipped] != marked || report.Outcomes[sweep.Failed] != 0 {
		w.t.Errorf("sweep left out %d objects, want the %d strangers with our marks: %+v", report.Outcomes[sweep.Skipped], marked, report.Items)
	}

	w.eventually("what was left of them is gone", func() string {
		now := w.managed()

		for _, one := range l[lost] {
			if w.namespace(one.name) != nil || len(now[one.pools[0]])+len(now[one.pools[1]]) > 0 {
				return one.name
			}
		}

		return ""
	})
}

// sweep runs sweep once.
func (w *world) sweep(args ...string) sweep.Report {
	w.t.Helper()

	command := exec.CommandContext(w.t.Context(), binary, append([]string{
		"sweep", "--config", "sweep.yaml", "--output", "json", "--min-age", "0s", "--max-deletions", "500",
		"--clients-hyperfleet-api-base-url", w.base,
	}, args...)...)
	command.Dir = w.dir

	var complaints strings.Builder

	command.Stderr = &complaints

	out, err := command.Output()
	if err != nil {
		w.t.Errorf("sweep: %v: %s", err, complaints.String())
	}

	var report sweep.Report

	w.must(json.Unmarshal(out, &report))

	return report
}

// quick are cadences for people in a hurry.
func quick() []string { return []string{"MAX_AGE_NOT_RECONCILED=2s", "MAX_AGE_RECONCILED=15s"} }
