// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/test/pgproc"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

// These environment variables change TestDay: the number of clusters, and the program of an earlier version, from which
// it upgrades. By default it upgrades from this version, which replaces the processes.
const (
	envClusters = "DAY_CLUSTERS"
	envBefore   = "DAY_BEFORE"

	defaultClusters = 40
	timePerCluster  = 50 * time.Millisecond
	dayNamespace    = "day"
	trackLabel      = "track"
	versionLabel    = "example.io/version"
)

// dayTask creates one ConfigMap for each cluster, so that many clusters fit into one API server. Earlier versions know
// everything in it.
const dayTask = `
params:
- {name: id, source: event.id, required: true}
- {name: generation, source: event.generation, type: int, required: true}
preconditions:
- name: cluster
  api_call: {method: GET, url: "clusters/{{ .id }}"}
  capture:
  - {name: clusterName, field: name}
  - {name: pods, expression: 'string(response.spec.?pods.orValue(0))'}
  conditions:
  - {field: clusterName, operator: exists}
resources:
- name: settings
  manifest:
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: "{{ .clusterName }}", namespace: day, labels: {example.io/version: v1}}
    data: {pods: "{{ .pods }}"}
  discovery: {namespace: day, by_name: "{{ .clusterName }}"}
post:
  payloads:
  - name: report
    build:
      adapter: "{{ .adapter.name }}"
      observed_generation: {expression: generation}
      observed_time: "{{ .now }}"
      conditions:
      - {type: Applied, status: {expression: 'adapter.executionStatus == "success" ? "True" : "False"'}}
      - {type: Available, status: {expression: 'adapter.executionStatus == "success" ? "True" : "False"'}}
      - {type: Health, status: {expression: 'adapter.executionStatus == "success" ? "True" : "False"'}}
  post_actions:
  - name: report
    api_call: {method: PUT, url: "clusters/{{ .id }}/statuses", body: "{{ .report }}"}
`

// day is an installation with clusters, each with one ConfigMap.
type day struct {
	*fixture

	// ids has the clusters by name, pods the values of their specs, and versions the versions of the task file.
	ids, pods, versions map[string]string
	names               []string
}

// TestDay runs the platform through what happens to it in a day, and prints what each step costs: a start from nothing,
// the upgrade from an earlier version, the restore of a backup, an exchange of the broker for the change feed, and a new
// version of an adapter for some clusters. The upgrade and the exchange happen while clusters change.
func TestDay(t *testing.T) {
	count := defaultClusters

	if text := os.Getenv(envClusters); text != "" {
		var err error
		if count, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", envClusters, err)
		}
	}

	d := &day{fixture: newFixture(t, options{useRabbitMQ: true}), ids: map[string]string{}, pods: map[string]string{}, versions: map[string]string{}}
	d.timeout = waitTimeout + time.Duration(count)*timePerCluster
	d.writeFile("clusters/task.yaml", dayTask)
	d.must(d.kube.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: newObjectMeta("", dayNamespace, nil, nil)}))
	d.grantAccess()

	old, updated := []string{progAPI, progSentinel, progClusters}, []string{progAPI, "adapter-feed"}

	d.step(fmt.Sprintf("start from nothing, with %d clusters", count), func() {
		for _, name := range old {
			d.programs[name].path = os.Getenv(envBefore)
		}

		d.startPrograms(old...)
		d.createAll(count)
		d.waitUntilCurrent()
	})
	d.step("upgrade", func() { d.upgrade(old) })
	d.step("backup, and restore of its state", d.restore)
	d.step("exchange of the broker for the change feed", func() { d.exchangeBroker(updated[1]) })
	d.step("a new version of the adapter for a quarter of the clusters", func() { d.runCanary(updated[1]) })

	for _, name := range updated {
		d.logf("%s used %.1f s of CPU time, and has %.0f MiB", name, d.sumMetric(name, "process_cpu_seconds_total", ""),
			d.sumMetric(name, "process_resident_memory_bytes", "")/(1<<20))
	}
}

// step runs a step, and prints how long it took.
func (d *day) step(what string, do func()) {
	d.t.Helper()

	from := time.Now()

	do()
	d.logf("step %q took %s", what, time.Since(from).Round(100*time.Millisecond))
}

// grantAccess gives the adapter the role that the command prints for its task file.
func (d *day) grantAccess() {
	d.t.Helper()

	command := exec.CommandContext(d.t.Context(), binary, "adapter", "validate", "clusters/task.yaml", "--config", "clusters/adapter.yaml", "-o", "rbac")
	command.Dir = d.dir

	out, err := command.Output()
	d.must(err)
	d.writeFile("day-rbac.yaml", string(out))
	d.kube.Apply(d.t, filepath.Join(d.dir, "day-rbac.yaml"))
}

// createAll creates clusters of the track stable.
func (d *day) createAll(count int) {
	d.t.Helper()

	for i := range count {
		d.names = append(d.names, fmt.Sprintf("day-%05d", i))
	}

	var mu sync.Mutex

	forEachParallel(d.names, func(name string) {
		id := d.createResource("/clusters", resource{Name: name, Labels: map[string]string{trackLabel: "stable"}, Spec: map[string]any{"pods": 1}})

		mu.Lock()
		defer mu.Unlock()

		d.ids[name], d.pods[name], d.versions[name] = id, "1", "v1"
	})
}

// setPods changes the spec of a cluster.
func (d *day) setPods(name string, pods int) {
	d.sendWithRetries(http.MethodPatch, "/clusters/"+d.ids[name], map[string]any{"spec": map[string]any{"pods": pods}})
	d.pods[name] = strconv.Itoa(pods)
}

// changeDuring changes one cluster after another while do runs.
func (d *day) changeDuring(do func()) {
	d.t.Helper()

	var changing sync.WaitGroup

	done := make(chan struct{})

	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				d.logf("%d changes meanwhile", i)

				return
			default:
				d.setPods(d.names[i%len(d.names)], i+2) //nolint:mnd // another value than at the start
			}
		}
	})

	do()
	close(done)
	changing.Wait()
}

// findOutdated returns a description of a cluster that is not reconciled, or whose ConfigMap has not the content of its
// spec, or an empty string. If isStrict is true, a cluster that is reconciled without this content is an error.
func (d *day) findOutdated(isStrict bool) string {
	d.t.Helper()

	reconciled := map[string]bool{}
	all := d.listResources("clusters", "")

	for i := range all {
		reconciled[all[i].Name] = isReconciled(&all[i])
	}

	objects, pending := d.listSettings(), ""

	for _, name := range d.names {
		object := objects[name]
		isCurrent := object.Data["pods"] == d.pods[name] && object.Labels[versionLabel] == d.versions[name]

		if isStrict && reconciled[name] && !isCurrent {
			d.t.Errorf("%s is reconciled, but its object has %v, want %s pods", name, object.Data, d.pods[name])
		}

		if !reconciled[name] || !isCurrent {
			pending = fmt.Sprintf("%s is reconciled: %t, and has %v, version %s", name, reconciled[name], object.Data, object.Labels[versionLabel])
		}
	}

	return pending
}

func (d *day) waitUntilCurrent() {
	d.t.Helper()
	d.eventually("all clusters are reconciled", func() string { return d.findOutdated(false) })
}

// listSettings returns the ConfigMaps by name.
func (d *day) listSettings() map[string]corev1.ConfigMap {
	d.t.Helper()

	var objects corev1.ConfigMapList

	d.must(d.kube.Client.List(d.t.Context(), &objects, kubeclient.InNamespace(dayNamespace)))

	out := map[string]corev1.ConfigMap{}
	for i := range objects.Items {
		out[objects.Items[i].Name] = objects.Items[i]
	}

	return out
}

// upgrade replaces one program after another. No object may be recreated.
func (d *day) upgrade(programs []string) {
	d.t.Helper()

	before := d.listSettings()

	d.changeDuring(func() {
		for _, name := range programs {
			d.must(d.programs[name].process.Stop())

			d.programs[name].path = ""
			d.startPrograms(name)
		}
	})
	d.waitUntilCurrent()

	after := d.listSettings()
	for name := range before {
		if after[name].UID != before[name].UID {
			d.t.Errorf("the object of %s was recreated", name)
		}
	}
}

// restore saves the database, changes clusters, and restores the database into another one. No cluster may be reconciled
// before its object has the content of the backup.
func (d *day) restore() {
	d.t.Helper()

	source := strings.TrimSpace(d.readFile(filepath.Join(d.dir, "database-url")))
	backup := filepath.Join(d.dir, "backup")
	saved := d.pods[d.names[0]]

	d.runPostgres("pg_dump", "--format=custom", "--file="+backup, source)

	for _, name := range d.names {
		d.setPods(name, 1_000_000) //nolint:mnd // another value than in the backup
	}

	d.waitUntilCurrent()
	d.must(d.programs[progAPI].process.Stop())

	target := postgres.NewDatabase(d.t)
	d.runPostgres("pg_restore", "--no-owner", "--dbname="+target, backup)
	d.writeFile("database-url", target+"\n")
	d.startPrograms(progAPI)
	d.logf("the API runs with the restored database")

	for _, r := range d.listResources("clusters", "") {
		d.pods[r.Name] = fmt.Sprint(r.Spec["pods"])
	}

	if got := d.pods[d.names[0]]; got != saved {
		d.t.Errorf("%s has %s pods after the restore, want %s", d.names[0], got, saved)
	}

	d.eventually("all clusters have the state of the backup", func() string { return d.findOutdated(true) })
}

// runPostgres runs a program of PostgreSQL.
func (d *day) runPostgres(name string, args ...string) {
	d.t.Helper()

	programs, err := pgproc.FindBinaries()
	d.must(err)

	if out, err := exec.CommandContext(d.t.Context(), filepath.Join(programs, name), args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// addAdapter adds an adapter that follows the API.
func (d *day) addAdapter(name, config, task string) {
	d.t.Helper()
	d.addProgram(name, "HYPERFLEET_", []string{"adapter", "serve", "--config", config, "--task-config", task},
		"HYPERFLEET_CLIENTS_HYPERFLEET_API_BASE_URL="+d.apiURL)
}

// exchangeBroker replaces RabbitMQ and Sentinel by the change feed, while clusters change.
func (d *day) exchangeBroker(adapter string) {
	d.t.Helper()

	d.addAdapter(adapter, "clusters/adapter.yaml", "clusters/task.yaml")
	d.changeDuring(func() {
		d.must(d.programs[progSentinel].process.Stop())
		d.must(d.programs[progClusters].process.Stop())
		d.startPrograms(adapter)
	})
	d.waitUntilCurrent()
}

// runCanary moves a quarter of the clusters to a new version of the task file.
func (d *day) runCanary(adapter string) {
	d.t.Helper()

	config := d.readFile(filepath.Join(d.dir, "clusters", "adapter.yaml"))
	d.writeFile("clusters/stable.yaml", strings.Replace(config, "parallelism: 16", "parallelism: 16, resource_selector: {track: stable}", 1))
	d.writeFile("clusters/canary.yaml", strings.Replace(config, "parallelism: 16", "parallelism: 16, resource_selector: {track: canary}, variant: canary", 1))
	d.writeFile("clusters/canary-task.yaml", strings.Replace(dayTask, versionLabel+": v1", versionLabel+": v2", 1))

	d.must(d.programs[adapter].process.Stop())
	d.addAdapter(adapter, "clusters/stable.yaml", "clusters/task.yaml")
	d.addAdapter("adapter-canary", "clusters/canary.yaml", "clusters/canary-task.yaml")
	d.startPrograms(adapter, "adapter-canary")

	canaries := d.names[:max(len(d.names)/4, 1)] //nolint:mnd // a quarter
	for _, name := range canaries {
		d.versions[name] = "v2"
	}

	forEachParallel(canaries, func(name string) {
		d.sendWithRetries(http.MethodPatch, "/clusters/"+d.ids[name], map[string]any{"labels": map[string]string{trackLabel: "canary"}})
	})
	d.waitUntilCurrent()
}
