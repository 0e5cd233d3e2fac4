// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
)

const (
	site       = "site-1"
	generation = "generation"
)

// sample is a sample adapter's folder, with a test of the lifecycle of its objects.
type sample struct {
	kinds []platform.Entity
	// run runs the lifecycle. completed is false if it ended early, because a call was forbidden. id is the ID
	// of the resource at that time.
	run func(l *adapterRun) (id string, completed bool)
}

// adapters returns the sample adapters by folder.
func adapters() map[string]sample {
	clusters := func(adapter string) platform.Entity {
		return platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{adapter}}
	}

	return map[string]sample{
		"clusters": {[]platform.Entity{clusters("cluster-space")}, runCluster},
		"nodepools": {[]platform.Entity{clusters("absent"), {
			Kind: "NodePool", Plural: "nodepools", ParentKind: "Cluster", OnParentDelete: "cascade", RequiredAdapters: []string{"pool-config"},
		}}, runPool},
		"agents": {[]platform.Entity{clusters("cluster-agent")}, runAgent},
	}
}

// TestAdapterRolesAreSufficient checks that each adapter can do everything with its role, and gets no error
// Forbidden.
func TestAdapterRolesAreSufficient(t *testing.T) {
	t.Parallel()

	for folder, s := range adapters() {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()

			a := readRoles(t, folder+"/rbac.yaml")
			config := env.ServiceAccount(t, system, a.account)
			env.Apply(t, samples+folder+"/rbac.yaml")

			served, url := fleetapi.Serve(t, database, s.kinds...)
			l := newAdapterRun(t, folder, served, url, config, permission{})

			if _, completed := s.run(l); !completed {
				t.Error("the lifecycle ended early")
			}

			if output := l.forbidden.String() + l.log.String(); strings.Contains(strings.ToLower(output), "forbidden") {
				t.Errorf("the adapter got errors Forbidden:\n%s", output)
			}
		})
	}
}

// TestAdapterRolesAreMinimal checks that without any single verb of its role an adapter gets an error Forbidden,
// and reports verb and kind: in the status of the resource in the fleet API, or, for watches, in its log, because
// an adapter works without watches.
func TestAdapterRolesAreMinimal(t *testing.T) {
	t.Parallel()

	for folder, s := range adapters() {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()

			a := readRoles(t, folder+"/rbac.yaml")
			served, url := fleetapi.Serve(t, database, s.kinds...)

			for _, lacks := range a.permissions() {
				t.Run(lacks.String(), func(t *testing.T) {
					t.Parallel()

					l := newAdapterRun(t, folder, served, url, a.createAccount(t, fmt.Sprintf("%s-%d", a.account, serial.Add(1)), lacks), lacks)
					id, completed := s.run(l)

					if completed && !l.isForWatches() {
						t.Fatalf("the lifecycle completed without %s", lacks)
					}

					if completed {
						l.waitFor("the log reports that watches are forbidden", func() string { return "it does not" })
					} else if !l.isForWatches() && !l.hasMessage(id, lacks.forbiddenMessage()) {
						t.Errorf("the status does not contain %q", lacks.forbiddenMessage())
					}
				})
			}
		})
	}
}

// isForWatches returns true if the missing permission is only used for watches.
func (l *adapterRun) isForWatches() bool {
	return l.lacks.verb == "watch" || l.lacks.verb == "list" && l.lacks.resource != "jobs"
}

// runCluster creates a namespace with a quota and jobs, changes it completed the API and directly, retains and
// prunes jobs, meets a failed job and a foreign job with the same name, hands one cluster over, and deletes
// another.
func runCluster(l *adapterRun) (string, bool) {
	space, quota := newRef("", "v1", "Namespace", "", "cluster-"+l.name), newRef("", "v1", "ResourceQuota", "cluster-"+l.name, "cluster")
	id := l.call(http.MethodPost, "/clusters", fmt.Sprintf(`{"name":%q,"spec":{"tier":"silver"}}`, l.name)).Id

	made := func(n int) func() string {
		return func() string {
			if jobs := l.listJobs(space.Name); len(jobs) != n {
				return fmt.Sprintf("%d jobs, want %d", len(jobs), n)
			}

			return l.checkField(quota, "", "none")
		}
	}
	change := func(spec string, n int) bool {
		l.endJobs(space.Name, false)
		l.call(http.MethodPatch, "/clusters/"+id, `{"spec":`+spec+`}`)

		return l.reconcileUntil("another job", id, made(n))
	}

	completed := l.reconcileUntil("the first job", id, made(1)) &&
		l.waitForCache(id, space, quota, newRef("batch", "v1", "Job", space.Name, l.listJobs(space.Name)[0].Name)) &&
		change(`{"tier":"gold","pods":20}`, 2) &&
		l.waitFor("the quota is updated", func() string { return l.checkField(quota, "20", "spec", "hard", "pods") }) &&
		l.checkDrift(id, space, quota) &&
		change(`{"tier":"gold","pods":21}`, 3) &&
		l.checkPruning(id, space.Name) &&
		l.checkRetry(id, space.Name) &&
		l.checkForeignJob(id, space.Name)
	if !completed {
		return id, false
	}

	l.call(http.MethodDelete, "/clusters/"+id, "")

	if !l.waitForDeletion(id) {
		return id, false
	}

	return l.handOver()
}

// checkDrift changes the objects directly, and waits until the adapter has reverted the changes.
func (l *adapterRun) checkDrift(id string, space, quota transport.Ref) bool {
	l.patchDirectly(space, `{"metadata":{"labels":{"example.io/tier":"mine"}}}`)
	l.patchDirectly(quota, `{"spec":{"hard":{"pods":"1000"}}}`)

	return l.reconcileUntil("the direct changes are reverted", id, func() string {
		return l.checkField(space, "gold", "metadata", "labels", "example.io/tier") + l.checkField(quota, "20", "spec", "hard", "pods")
	})
}

// checkPruning creates one job more than are retained.
func (l *adapterRun) checkPruning(id, space string) bool {
	l.endJobs(space, false)

	first := l.listJobs(space)[0].Name

	l.call(http.MethodPatch, "/clusters/"+id, `{"spec":{"tier":"gold","pods":22}}`)

	return l.reconcileUntil("the oldest job is deleted", id, func() string {
		if jobs := l.listJobs(space); len(jobs) != 3 || jobs[0].Name == first {
			return fmt.Sprintf("%d jobs, want 3 without the oldest", len(jobs))
		}

		return ""
	})
}

// checkRetry makes the newest job fail.
func (l *adapterRun) checkRetry(id, space string) bool {
	l.endJobs(space, true)

	jobs := l.listJobs(space)
	failed := jobs[len(jobs)-1].Name

	return l.reconcileUntil("a new job replaces the failed one", id, func() string {
		if jobs := l.listJobs(space); jobs[len(jobs)-1].Name == failed {
			return failed + " is still the newest job"
		}

		return ""
	})
}

// checkForeignJob creates a foreign job with the name of the adapter's next job, and waits until the adapter
// reports it.
func (l *adapterRun) checkForeignJob(id, space string) bool {
	l.endJobs(space, false)

	r := l.call(http.MethodPatch, "/clusters/"+id, `{"spec":{"tier":"gold","pods":23}}`)
	l.clock.SetTime(l.clock.Now().Add(clockOffset))

	name := fmt.Sprintf("%s-%d-%s", l.name, r.Generation,
		strings.ReplaceAll(strings.ToLower(l.clock.Now().Add(time.Second).UTC().Format(time.RFC3339)), ":", "-"))
	l.createDirectly(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}, Spec: batchv1.JobSpec{
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "theirs", Image: "theirs"}},
		}},
	}})

	l.sendEvent(id)

	if l.isForbidden() {
		return false
	}

	if !l.hasMessage(id, name+" exists and is not managed") {
		l.t.Fatalf("the status does not report the foreign job %s\n%s", name, l.log)
	}

	return true
}

// handOver runs a second cluster, which leaves its objects behind when it is deleted.
func (l *adapterRun) handOver() (string, bool) {
	l.name = fmt.Sprintf("c%d", serial.Add(1))

	space := "cluster-" + l.name
	body := fmt.Sprintf(`{"name":%q,"labels":{"keep":"true"},"spec":{}}`, l.name)
	id := l.call(http.MethodPost, "/clusters", body).Id

	if !l.reconcileUntil("the job of the cluster to hand over", id, func() string {
		if len(l.listJobs(space)) == 0 {
			return "no job"
		}

		return ""
	}) {
		return id, false
	}

	l.call(http.MethodDelete, "/clusters/"+id, "")

	if !l.waitForDeletion(id) {
		return id, false
	}

	if len(l.listJobs(space)) != 1 {
		l.t.Error("the job was deleted with the cluster that was handed over")
	}

	return id, true
}

// runPool creates a ConfigMap, changes it completed the API and directly, and deletes it.
func runPool(l *adapterRun) (string, bool) {
	cluster := l.call(http.MethodPost, "/clusters", fmt.Sprintf(`{"name":%q,"spec":{}}`, l.name))
	l.parent = cluster.Id
	l.createNamespace("cluster-" + l.name)

	config := newRef("", "v1", "ConfigMap", "cluster-"+l.name, "pool-"+l.name)
	id := l.call(http.MethodPost, "/clusters/"+cluster.Id+"/nodepools", fmt.Sprintf(`{"name":%q,"spec":{}}`, l.name)).Id

	replicas := func(want string) func() string {
		return func() string { return l.checkField(config, want, "data", "replicas") }
	}

	if !l.reconcileUntil("the object is created", id, replicas("1")) || !l.waitForCache(id, config) {
		return id, false
	}

	l.call(http.MethodPatch, "/nodepools/"+id, `{"spec":{"replicas":5}}`)

	if !l.reconcileUntil("the object is updated", id, replicas("5")) {
		return id, false
	}

	l.patchDirectly(config, `{"data":{"replicas":"1000"}}`)

	if !l.reconcileUntil("the direct changes are reverted", id, replicas("5")) {
		return id, false
	}

	l.call(http.MethodDelete, "/nodepools/"+id, "")

	return id, l.waitForDeletion(id)
}

// runAgent creates a ManifestWork, changes it, hands it over, and deletes another one.
func runAgent(l *adapterRun) (string, bool) {
	l.createNamespace(site)

	for _, keep := range []string{"true", "false"} {
		l.name = fmt.Sprintf("c%d", serial.Add(1))

		work := newRef("work.open-cluster-management.io", "v1", "ManifestWork", site, "agent-"+l.name)
		id := l.call(http.MethodPost, "/clusters", fmt.Sprintf(`{"name":%q,"labels":{"keep":%q},"spec":{}}`, l.name, keep)).Id
		at := func(want string) func() string {
			return func() string {
				return l.checkField(work, want, "metadata", "annotations", "hyperfleet.io/"+generation)
			}
		}

		if !l.reconcileUntil("the ManifestWork is created", id, at("1")) || !l.waitForCache(id, work) {
			return id, false
		}

		l.call(http.MethodPatch, "/clusters/"+id, `{"spec":{"tier":"gold"}}`)

		if !l.reconcileUntil("the ManifestWork is updated", id, at("2")) {
			return id, false
		}

		l.call(http.MethodDelete, "/clusters/"+id, "")

		if !l.waitForDeletion(id) {
			return id, false
		}

		if left := l.getObject(work) != nil; left != (keep == "true") {
			l.t.Errorf("keep=%s: the ManifestWork exists: %v", keep, left)
		}
	}

	return "", true
}
