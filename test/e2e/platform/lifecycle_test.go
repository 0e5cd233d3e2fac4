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

// testCluster is a cluster with its two node pools, and the values that its objects must have.
type testCluster struct {
	name, id string
	pools    []string
	tier     string
	pods     string
	replicas string
}

// testClusters has all clusters by what the test does with them.
type testClusters map[string][]*testCluster

const (
	// These are the groups of clusters. The values are prefixes of their names.
	updated, drifted, handedOver, deleted, forceDeleted = "stay", "drift", "keep", "gone", "lost"

	poolsPerCluster = 2
)

func newTestClusters() testClusters {
	counts := map[string]int{updated: 40, drifted: 20, handedOver: 10, deleted: 20, forceDeleted: 10}
	if testing.Short() {
		counts = map[string]int{updated: 10, drifted: 5, handedOver: 3, deleted: 5, forceDeleted: 2}
	}

	out := testClusters{}

	for fate, count := range counts {
		for i := range count {
			out[fate] = append(out[fate], &testCluster{name: fmt.Sprintf("%s-%02d", fate, i), tier: "silver", pods: "10", replicas: "1"})
		}
	}

	return out
}

func (l testClusters) all() []*testCluster {
	return slices.Concat(l[updated], l[drifted], l[handedOver], l[deleted], l[forceDeleted])
}

// TestHundredClusters creates a hundred clusters (25 with -short) with two node pools each. It updates
// some, changes objects of others by hand, and deletes others with and without their objects, while it
// kills each process in turn.
func TestHundredClusters(t *testing.T) {
	for name, rabbit := range map[string]bool{"feed": false, "rabbitmq": true} {
		t.Run(name, func(t *testing.T) {
			testHundredClusters(t, options{useRabbitMQ: rabbit, withAgents: true, intervals: shortIntervals()})
		})
	}
}

func testHundredClusters(t *testing.T, s options) {
	t.Helper()

	w := newFixture(t, s)
	l := newTestClusters()

	w.createForeignObjects()
	w.finishJobs()
	w.startPrograms(append(w.listPlatformPrograms(), progAgents)...)
	w.startPrograms(w.secondScheduler())
	w.logf("all programs are ready")

	w.createClusters(l)
	w.createCopies(l)
	w.updateClusters(l)
	w.changeObjectsByHand(l)
	w.deleteClusters(l)
	w.forceDeleteClusters(l)

	w.waitUntilReconciled("all remaining resources are reconciled")
	w.eventually("all objects match their resources", func() string { return w.findMismatch(l) })

	if text := w.findTouchedObject(); text != "" {
		t.Errorf("a foreign object was changed: %s", text)
	}
}

// createForeignObjects creates objects that the platform must not touch, and the namespaces that must exist
// before it.
func (w *fixture) createForeignObjects() {
	w.t.Helper()

	for _, name := range []string{site, agentsNamespace} {
		w.createForeignObject(&corev1.Namespace{ObjectMeta: newObjectMeta("", name, nil, nil)})
	}

	ocmtest.New(w.t, ocm.Options{Hub: w.kube.Config, Cluster: site, Interval: 5 * time.Second})

	forged := map[string]string{
		adapter.LabelAdapter: "cluster-space", adapter.LabelResourceID: uuid.NewString(), adapter.LabelResourceName: "space",
	}
	w.createForeignObject(&corev1.Namespace{ObjectMeta: newObjectMeta("", "plain", nil, nil)})
	w.createForeignObject(&corev1.Namespace{ObjectMeta: newObjectMeta("", "forged", forged, nil)})
	w.createForeignObject(&corev1.Secret{ObjectMeta: newObjectMeta("plain", "forged", forged, map[string]string{
		adapter.AnnotationIdentity: "v1.00000000.bm90IGFuIEhNQUM", adapter.AnnotationGeneration: "1",
	})})
	w.createForeignObject(&corev1.Namespace{ObjectMeta: newObjectMeta("", "another-adapter", map[string]string{
		adapter.LabelAdapter: "other-adapter", adapter.LabelResourceID: uuid.NewString(),
	}, nil)})
	w.createForeignObject(&corev1.ConfigMap{ObjectMeta: newObjectMeta("plain", "pool-first", nil, nil), Data: map[string]string{"replicas": "1"}})
}

// createClusters creates all clusters and node pools, and kills the clusters' adapter meanwhile.
func (w *fixture) createClusters(l testClusters) {
	w.t.Helper()

	var killing sync.WaitGroup

	killing.Go(func() {
		time.Sleep(2 * time.Second)
		w.killPrograms(progClusters)
		w.logf("killed the clusters' adapter")
	})

	forEachParallel(l.all(), func(one *testCluster) {
		labels := map[string]string{"fleet": "test"}
		if strings.HasPrefix(one.name, handedOver) {
			labels["keep"] = "true"
		}

		one.id = w.createResource("/clusters", resource{Name: one.name, Labels: labels, Spec: map[string]any{"tier": one.tier}})

		for _, pool := range []string{"first", "second"} {
			one.pools = append(one.pools, w.createResource("/clusters/"+one.id+"/nodepools",
				resource{Name: pool, Spec: map[string]any{"replicas": 1}}))
		}
	})
	killing.Wait()
	w.logf("created %d clusters with %d node pools", len(l.all()), poolsPerCluster*len(l.all()))
	w.startPrograms(progClusters)
	w.waitUntilReconciled("all resources are reconciled")
}

// createCopies creates copies of managed objects, with all their labels and annotations, under other names.
func (w *fixture) createCopies(l testClusters) {
	w.t.Helper()

	for _, from := range []*testCluster{l[updated][0], l[deleted][0], l[forceDeleted][0]} {
		original := w.getNamespace(from.name)
		if original == nil {
			w.t.Fatalf("cluster %s has no namespace", from.name)

			return
		}

		labels := map[string]string{}

		for key, value := range original.Labels {
			if key != corev1.LabelMetadataName {
				labels[key] = value
			}
		}

		w.createForeignObject(&corev1.Namespace{ObjectMeta: newObjectMeta("", "copy-of-"+from.name, labels, original.Annotations)})
		w.createForeignObject(&corev1.ConfigMap{ObjectMeta: newObjectMeta("plain", "copy-of-"+from.name, labels, original.Annotations)})
	}
}

// secondScheduler returns the second replica of the program that decides which clusters are reconciled.
func (w *fixture) secondScheduler() string {
	if w.broker != nil {
		return progSentinel2
	}

	return progClusters2
}

// firstScheduler returns the first replica of this program.
func (w *fixture) firstScheduler() string {
	if w.broker != nil {
		return progSentinel
	}

	return progClusters
}

// updateClusters changes clusters and node pools. Meanwhile it kills the source of the adapters' events:
// the broker, or the API.
func (w *fixture) updateClusters(l testClusters) {
	w.t.Helper()

	var killing sync.WaitGroup

	killing.Go(func() {
		time.Sleep(pollInterval)

		if w.broker != nil {
			w.broker.Kill(w.t)
			w.logf("killed the broker")

			return
		}

		w.killPrograms(progAPI)
		w.logf("killed the API")
		w.startPrograms(progAPI)
	})

	forEachParallel(l[updated], func(one *testCluster) {
		one.tier, one.pods, one.replicas = "gold", "20", "5"

		w.sendWithRetries(http.MethodPatch, "/clusters/"+one.id, map[string]any{"spec": map[string]any{"tier": "gold", "pods": 20}})

		for _, id := range one.pools {
			w.sendWithRetries(http.MethodPatch, "/nodepools/"+id, map[string]any{"spec": map[string]any{"replicas": 5}})
		}
	})
	killing.Wait()

	if w.broker != nil {
		w.broker.Restart(w.t)
		w.logf("restarted the broker")
	}

	w.waitUntilReconciled("all resources are reconciled at their new generation")
	w.eventually("all objects match the new generation", func() string { return w.findMismatch(l) })
}

// changeObjectsByHand changes and deletes objects of clusters, and kills the program that decides which
// clusters are reconciled.
func (w *fixture) changeObjectsByHand(l testClusters) {
	w.t.Helper()

	for i, one := range l[drifted] {
		space := "cluster-" + one.name

		switch i % 5 {
		case 0:
			w.must(w.kube.Client.Delete(w.t.Context(), &corev1.ConfigMap{ObjectMeta: newObjectMeta(space, "pool-first", nil, nil)}))
		case 1:
			w.mergePatch(w.getNamespace(one.name), `{"metadata":{"labels":{"example.io/tier":"mine"}}}`)
		case 2:
			w.mergePatch(&corev1.ResourceQuota{ObjectMeta: newObjectMeta(space, "cluster", nil, nil)}, `{"spec":{"hard":{"pods":"1000"}}}`)
		case 3:
			w.mergePatch(&corev1.ConfigMap{ObjectMeta: newObjectMeta(space, "pool-second", nil, nil)}, `{"data":{"replicas":"1000"}}`)
		default:
			work := &unstructured.Unstructured{}
			work.SetAPIVersion("work.open-cluster-management.io/v1")
			work.SetKind("ManifestWork")
			work.SetNamespace(site)
			work.SetName("agent-" + one.name)
			w.must(w.kube.Client.Delete(w.t.Context(), work))
		}
	}

	w.logf("changed objects by hand and killed %s", w.firstScheduler())
	w.killPrograms(w.firstScheduler())
	w.eventually("all objects that were changed by hand are restored", func() string { return w.findMismatch(l) })
	w.eventually("all failed Jobs are retried", func() string { return w.findClusterWithoutRetry(l) })
	w.startPrograms(w.firstScheduler())
}

// findClusterWithoutRetry returns a cluster whose first Job failed and that has no second Job.
func (w *fixture) findClusterWithoutRetry(l testClusters) string {
	for _, one := range l[drifted] {
		jobs := &batchv1.JobList{}
		w.must(w.kube.Client.List(w.t.Context(), jobs, kubeclient.InNamespace("cluster-"+one.name)))

		if len(jobs.Items) < 2 {
			return one.name
		}
	}

	return ""
}

// deleteClusters deletes clusters, some of which hand their objects over, while the API is killed and
// restarted.
func (w *fixture) deleteClusters(l testClusters) {
	w.t.Helper()

	var killing sync.WaitGroup

	killing.Go(func() {
		w.killPrograms(progAPI)
		w.logf("killed the API")
		w.startPrograms(progAPI)
	})

	deleting := slices.Concat(l[deleted], l[handedOver])
	forEachParallel(deleting, func(one *testCluster) { w.sendWithRetries(http.MethodDelete, "/clusters/"+one.id, nil) })
	killing.Wait()
	w.logf("requested the deletion of %d clusters", len(deleting))

	w.eventually("the API has removed the deleted clusters", func() string {
		for _, one := range deleting {
			for _, id := range append([]string{one.id}, one.pools...) {
				if !w.isGone(id) {
					return one.name + " still exists"
				}
			}
		}

		return ""
	})
}

// forceDeleteClusters deletes clusters by force while their adapters are down, and then runs sweep.
func (w *fixture) forceDeleteClusters(l testClusters) {
	w.t.Helper()

	adapters := []string{progClusters, progPools, progAgents}
	if w.broker == nil {
		adapters = append(adapters, w.secondScheduler())
	}

	w.killPrograms(adapters...)

	forEachParallel(l[forceDeleted], func(one *testCluster) {
		w.sendWithRetries(http.MethodDelete, "/clusters/"+one.id, nil)

		status, _ := w.sendWithRetries(http.MethodPost, "/clusters/"+one.id+"/force-delete", map[string]string{"reason": "end-to-end test"})
		if status != http.StatusNoContent {
			w.t.Errorf("force-delete %s: status %d", one.name, status)
		}
	})
	w.logf("deleted %d clusters by force while their adapters were down", len(l[forceDeleted]))
	w.startPrograms(adapters...)

	before := w.listManagedObjects()
	for _, one := range l[forceDeleted] {
		if len(before[one.id]) == 0 {
			w.t.Errorf("%s has no objects for sweep to delete", one.name)
		}
	}

	dry := w.runSweep()
	if !dry.DryRun || dry.Outcomes[sweep.WouldDelete] == 0 || dry.Outcomes[sweep.Deleted] != 0 {
		w.t.Errorf("outcomes of a dry run: %+v, want only %s", dry.Outcomes, sweep.WouldDelete)
	}

	report := w.runSweep("--delete")
	w.logf("outcomes of sweep: %v", report.Outcomes)

	marked := 0

	for _, s := range w.foreignObjects {
		// Sweep does not list Secrets.
		if _, secret := s.object.(*corev1.Secret); !secret && s.labels[adapter.LabelAdapter] != "" {
			marked++
		}
	}

	if report.Outcomes[sweep.Skipped] != marked || report.Outcomes[sweep.Failed] != 0 {
		w.t.Errorf("sweep skipped %d objects, want the %d foreign objects with an adapter label: %+v", report.Outcomes[sweep.Skipped], marked, report.Items)
	}

	w.eventually("sweep has deleted all objects of the removed clusters", func() string {
		now := w.listManagedObjects()

		for _, one := range l[forceDeleted] {
			if w.getNamespace(one.name) != nil || len(now[one.pools[0]])+len(now[one.pools[1]]) > 0 {
				return one.name
			}
		}

		return ""
	})
}

// runSweep runs sweep once and returns its report.
func (w *fixture) runSweep(args ...string) sweep.Report {
	w.t.Helper()

	command := exec.CommandContext(w.t.Context(), binary, append([]string{
		"sweep", "--config", "sweep.yaml", "--output", "json", "--min-age", "0s", "--max-deletions", "500",
		"--clients-hyperfleet-api-base-url", w.apiURL,
	}, args...)...)
	command.Dir = w.dir

	var stderr strings.Builder

	command.Stderr = &stderr

	out, err := command.Output()
	if err != nil {
		w.t.Errorf("sweep: %v: %s", err, stderr.String())
	}

	var report sweep.Report

	w.must(json.Unmarshal(out, &report))

	return report
}

// shortIntervals returns environment variables with short resync intervals.
func shortIntervals() []string {
	return []string{"MAX_AGE_NOT_RECONCILED=2s", "MAX_AGE_RECONCILED=15s"}
}
