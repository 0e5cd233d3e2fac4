// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/kubelet/volume"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/pgproc"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

// restorePage is the page whose commands TestPostgreSQLPage runs. The constants are its blocks of commands.
const restorePage = "../../docs/operate/postgresql.md"

const (
	blockVariables = iota
	blockDump
	blockStopAPI
	blockRestore
	blockRestoreElsewhere
	blockStartAPI
	blockList
	blockSweep
	blockCount
)

// restoreTask is a task file with one object, whose content is that of the resource.
const restoreTask = `
params:
- {name: id, source: event.id, required: true}
- {name: generation, source: event.generation, type: int, required: true}
preconditions:
- name: cluster
  api_call: {method: GET, url: "clusters/{{ .id }}"}
  capture:
  - {name: clusterName, field: name}
  - {name: replicas, expression: 'string(response.spec.replicas)'}
  - {name: isDeleting, expression: 'response.?deleted_time.hasValue()'}
  conditions: [{field: clusterName, operator: exists}]
resources:
- name: config
  manifest:
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: "{{ .clusterName }}-{{ .adapter.name }}", namespace: NAMESPACE}
    data: {replicas: "{{ .replicas }}"}
  discovery: {namespace: NAMESPACE, by_name: "{{ .clusterName }}-{{ .adapter.name }}"}
  lifecycle: {delete: {when: {expression: isDeleting}}}
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
      - type: Finalized
        status: {expression: 'isDeleting && adapter.executionStatus == "success" && !resources.?config.hasValue() ? "True" : "False"'}
  post_actions:
  - name: report
    api_call: {method: PUT, url: "clusters/{{ .id }}/statuses", body: "{{ .report }}"}
`

// restoreAdapters are the required adapters of the kind. The first gets events from Sentinel, the second
// follows the API.
func restoreAdapters() []string { return []string{"teller", "follower"} }

// restoreSite is an installation with objects on an API server.
type restoreSite struct {
	*installation

	// own is the database server, whose files change.
	own                   *postgres.Server
	cluster               *kube.Env
	namespace             string
	shellPath, kubeconfig string
	blocks                []string
	// variables are the commands that precede each block.
	variables string
	wrong     []string
}

func newRestoreSite(t *testing.T) *restoreSite {
	t.Helper()

	s := &restoreSite{own: postgres.Start(t)}
	s.installation, s.cluster = newInstallation(t), kube.Start(t)
	s.database = s.own.NewDatabase(t)
	s.write("url", s.database+"\n")
	s.namespace = s.cluster.Namespace(t)
	s.cluster.Apply(t, "../../deploy/platform/namespace.yaml", "../../deploy/platform/api.yaml")

	s.cluster.Create(t, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "of-somebody"}, Data: map[string]string{"replicas": "0"},
	})

	s.kubeconfig = s.cluster.Kubeconfig(t, s.cluster.Config)
	s.write("api.yaml", fmt.Sprintf(`
server: {address: %q}
database: {url_file: url}
entities: [{kind: Cluster, plural: clusters, name_min_len: 3, name_max_len: 53, required_adapters: [%s]}]
`, strings.TrimPrefix(s.api, "http://"), strings.Join(restoreAdapters(), ", ")))
	s.write("task.yaml", strings.ReplaceAll(restoreTask, "NAMESPACE", s.namespace))
	s.sentinel += "max_age_not_reconciled: 2s\n"
	volume.Mount(t, s.mounted, map[string]string{"sentinel.yaml": s.sentinel})

	clients := fmt.Sprintf("clients: {hyperfleet_api: {base_url: %q}, kubernetes: {kube_config_path: %q}", s.api, s.kubeconfig)
	s.write("adapter.yaml", "adapter: {name: teller, version: 1.0.0}\nidentity_key_file: key\n"+clients+
		", broker: {topic: clusters, subscription_id: teller}}\n")
	s.write("follower.yaml", "adapter: {name: follower, version: 1.0.0}\nidentity_key_file: key\n"+
		"events: {resource_type: clusters, max_age_not_reconciled: 2s}\n"+clients+"}\n")
	s.write("sweep.yaml", fmt.Sprintf("identity_key_file: key\nkinds: [ConfigMap]\nmin_age: 1ms\nkube_config_path: %q\n"+
		"clients: {hyperfleet_api: {base_url: %q}}\n", s.kubeconfig, s.api))

	s.readPage()
	s.startAPI()
	s.start("follower", "HYPERFLEET_", "adapter", "serve", "--config", "follower.yaml", "--task-config", "task.yaml")

	s.env = append(s.env, "BROKER_CONFIG_FILE=broker.yaml")
	s.start("adapter", "HYPERFLEET_", "adapter", "serve", "--config", "adapter.yaml", "--task-config", "task.yaml")
	s.startSentinel()

	return s
}

func (s *restoreSite) startSentinel() {
	s.t.Helper()
	s.start("sentinel", "HYPERFLEET_", "sentinel", "--config", filepath.Join(s.mounted, "sentinel.yaml"))
}

// readPage reads the commands of the page, and replaces the names of its servers.
func (s *restoreSite) readPage() {
	s.t.Helper()

	page, err := os.ReadFile(restorePage)
	must.Do(s.t, err)

	database, err := url.Parse(s.database)
	must.Do(s.t, err)

	password, _ := database.User.Password()
	s.write("pgpass", strings.Join([]string{database.Hostname(), database.Port(), "*", database.User.Username(), password}, ":")+"\n")

	own := strings.NewReplacer(
		"PGHOST=postgres.example.com", "PGPORT="+database.Port()+" PGHOST="+database.Hostname(), "PGUSER=fleet", "PGUSER="+database.User.Username(),
		"PGDATABASE=fleet ", "PGDATABASE="+database.Path[1:]+" ", "fleet_restored", database.Path[1:]+"_restored",
		"~/.pgpass", filepath.Join(s.dir, "pgpass"), "https://fleet.example.com", s.api,
	)

	for _, block := range regexp.MustCompile("(?s)<!-- run: TestPostgreSQLPage -->\n *```sh\n(.*?) *```").FindAllStringSubmatch(string(page), -1) {
		s.blocks = append(s.blocks, own.Replace(block[1]))
	}

	if len(s.blocks) != blockCount {
		s.t.Fatalf("the page has %d blocks of commands, want %d", len(s.blocks), blockCount)
	}

	s.variables = s.blocks[blockVariables]

	self, err := os.Executable()
	must.Do(s.t, err)

	postgresDir, err := pgproc.FindBinaries()
	must.Do(s.t, err)

	kubectl, err := exe.FindTool("kubectl", "kubectl")
	must.Do(s.t, err)

	programs := s.t.TempDir()
	must.Do(s.t, os.WriteFile(filepath.Join(programs, "hyperfleet-platform"),
		[]byte("#!/bin/sh\nexec env "+envProgram+"=1 "+self+" \"$@\"\n"), 0o700))

	s.shellPath = strings.Join([]string{programs, postgresDir, filepath.Dir(kubectl), os.Getenv("PATH")}, ":")
}

// run runs a block of commands of the page, and returns its output.
func (s *restoreSite) run(block int) string {
	s.t.Helper()

	return s.runShell(s.blocks[block])
}

func (s *restoreSite) runShell(commands string) string {
	s.t.Helper()

	command := exec.CommandContext(s.t.Context(), "/bin/bash", "-c", "set -eu -o pipefail\n"+s.variables+commands)
	command.Dir = s.dir
	command.Env = append(os.Environ(), "PATH="+s.shellPath, "KUBECONFIG="+s.kubeconfig, "no_proxy=*")

	out, err := command.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s\n%v\n%s", commands, err, out)
	}

	return string(out)
}

// scaleAPI runs the commands that stop or start the API, and then does what the kubelet does.
func (s *restoreSite) scaleAPI(block int, replicas int32) {
	s.t.Helper()
	s.run(block)

	var deployment appsv1.Deployment
	must.Do(s.t, s.cluster.Client.Get(s.t.Context(), client.ObjectKey{Namespace: "hyperfleet-system", Name: "hyperfleet-api"}, &deployment))

	if *deployment.Spec.Replicas != replicas {
		s.t.Fatalf("the API has %d replicas, want %d", *deployment.Spec.Replicas, replicas)
	}

	if replicas > 0 {
		s.startAPI()

		return
	}

	must.Do(s.t, s.processes["api"].Stop())
	delete(s.processes, "api")
}

// get returns a resource, and false if the API does not return it.
func (s *restoreSite) get(id string) (r openapi.Resource, found bool) {
	text, err := call(s.t.Context(), http.MethodGet, s.api+"/api/hyperfleet/v1/clusters/"+id, "")

	return r, err == nil && json.Unmarshal([]byte(text), &r) == nil
}

// save creates a resource, or changes the resource with the ID.
func (s *restoreSite) save(name, id string, replicas int) string {
	s.t.Helper()

	method, address := http.MethodPost, s.api+"/api/hyperfleet/v1/clusters"
	body := fmt.Sprintf(`{"name": %q, "labels": {"tier": "gold"}, "spec": {"replicas": %d}}`, name, replicas)

	if id != "" {
		method, address, body = http.MethodPatch, address+"/"+id, fmt.Sprintf(`{"spec": {"replicas": %d}}`, replicas)
	}

	text, err := call(s.t.Context(), method, address, body)
	must.Do(s.t, err)

	var saved openapi.Resource
	must.Do(s.t, json.Unmarshal([]byte(text), &saved))

	return saved.Id
}

func isReconciled(r openapi.Resource) bool {
	for _, condition := range r.Status.Conditions {
		if condition.Type == "Reconciled" {
			return condition.Status == "True" && condition.ObservedGeneration == r.Generation
		}
	}

	return false
}

// compare returns what differs between the spec of a resource and its objects, or "".
func (s *restoreSite) compare(r openapi.Resource) string {
	for _, adapter := range restoreAdapters() {
		var object corev1.ConfigMap

		err := s.cluster.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: r.Name + "-" + adapter}, &object)
		if want := fmt.Sprint(r.Spec["replicas"]); err != nil || object.Data["replicas"] != want {
			return fmt.Sprintf("%s, generation %d, is reconciled with %s replicas, and its object of %s has %q: %v",
				r.Name, r.Generation, want, adapter, object.Data["replicas"], err)
		}
	}

	return ""
}

// findFalseTrue compares all reconciled resources with their objects. A difference counts if the resource has
// not changed during the comparison.
func (s *restoreSite) findFalseTrue() {
	var list openapi.ResourceList

	text, err := call(s.t.Context(), http.MethodGet, s.api+"/api/hyperfleet/v1/clusters", "")
	if err != nil || json.Unmarshal([]byte(text), &list) != nil {
		return // the API is stopped meanwhile
	}

	for _, r := range list.Items {
		if !isReconciled(r) || r.DeletedTime != nil {
			continue
		}

		difference := s.compare(r)
		if difference == "" || s.t.Context().Err() != nil {
			continue
		}

		if again, found := s.get(r.Id); found && again.Etag == r.Etag {
			s.wrong = append(s.wrong, difference)
		}
	}
}

// expectReconciled waits until a resource is reconciled, and compares its objects.
func (s *restoreSite) expectReconciled(id string) {
	s.t.Helper()

	var r openapi.Resource

	s.eventually("resource "+id+" is reconciled", func() bool {
		var found bool
		r, found = s.get(id)

		return found && isReconciled(r)
	})

	if difference := s.compare(r); difference != "" {
		s.t.Error(difference)
	}
}

// remove deletes a resource and waits until it and its objects are gone.
func (s *restoreSite) remove(name, id string) {
	s.t.Helper()

	_, err := call(s.t.Context(), http.MethodDelete, s.api+"/api/hyperfleet/v1/clusters/"+id, "")
	must.Do(s.t, err)

	s.eventually(name+" is removed", func() bool {
		_, err := call(s.t.Context(), http.MethodGet, s.api+"/api/hyperfleet/v1/clusters/"+id, "")

		return err != nil && strings.Contains(err.Error(), "404")
	})
}

// useRestored makes the API and the commands use the database that the page has created.
func (s *restoreSite) useRestored() {
	s.t.Helper()

	export, _, _ := strings.Cut(s.blocks[blockRestoreElsewhere], "\n")
	_, name, _ := strings.Cut(export, "=")
	s.variables += export + "\n"
	s.write("url", s.own.URL(name)+"\n")

	s.t.Cleanup(func() {
		admin, err := pgx.Connect(context.Background(), s.own.URL("postgres"))
		must.Do(s.t, err)
		defer admin.Close(context.Background())

		_, err = admin.Exec(context.Background(), "drop database "+name+" with (force)")
		must.Do(s.t, err)
	})
}

// Ways of a restore.
const (
	sameDatabase    = "into the same database"
	whileAPIRuns    = "while the API runs"
	anotherDatabase = "into another database"
	pointInTime     = "to a point in time"
)

// backUp backs the database up, and returns a function that restores it.
func (s *restoreSite) backUp(way string) (restore func()) {
	s.t.Helper()

	switch way {
	case pointInTime:
		recoverTo := s.own.SaveFiles(s.t)

		// Only the log has this resource.
		s.expectReconciled(s.save("logged", "", 1))
		point := strings.TrimSpace(s.runShell("psql -Atc 'select pg_current_wal_lsn()'"))

		return func() {
			recoverTo(point)
			s.eventually("the server accepts writes", func() bool {
				return strings.TrimSpace(s.runShell("psql -Atc 'select pg_is_in_recovery()'")) == "f"
			})
		}
	case anotherDatabase:
		s.run(blockDump)

		return func() {
			s.run(blockRestoreElsewhere)
			s.useRestored()
		}
	default:
		s.run(blockDump)

		return func() { s.run(blockRestore) }
	}
}

// goBack follows the steps of a restore. The first restore also restarts Sentinel, which then has no cursor.
func (s *restoreSite) goBack(way string, restore func()) {
	s.t.Helper()

	if way == whileAPIRuns {
		restore()

		return
	}

	s.scaleAPI(blockStopAPI, 0)

	if way == sameDatabase {
		must.Do(s.t, s.processes["sentinel"].Stop())
	}

	restore()
	s.scaleAPI(blockStartAPI, 2)

	if way == sameDatabase {
		s.startSentinel()
		s.expectMetric("sentinel", `(?m)^hyperfleet_sentinel_events_published_total\{reason="restored",.*\} [2-9]$`)
	}
}

// live saves, changes, restores and changes again. All resources converge, and the API calls nothing reconciled
// that is not.
func (s *restoreSite) live(round int, way string) {
	s.t.Helper()

	name := func(prefix string) string { return prefix + "-" + strconv.Itoa(round) }
	pool, gone := s.save(name("pool"), "", 1), s.save(name("gone"), "", 1)

	for replicas := 2; replicas <= 4; replicas++ {
		s.save("", pool, replicas)
	}

	s.expectReconciled(pool)
	s.expectReconciled(gone)
	restore := s.backUp(way)

	for replicas := 5; replicas <= 7; replicas++ {
		s.save("", pool, replicas)
	}

	s.expectReconciled(pool)
	s.expectReconciled(s.save(name("late"), "", 1))
	s.remove(name("gone"), gone)

	s.goBack(way, restore)

	for replicas := 11; replicas <= 13; replicas++ {
		s.save("", pool, replicas)
		s.expectReconciled(pool)
	}

	s.expectReconciled(gone)

	late := s.save(name("late"), "", 9)

	s.eventually("the objects of the lost resource are not touched", func() bool {
		text, err := call(s.t.Context(), http.MethodGet, s.api+"/api/hyperfleet/v1/clusters/"+late+"/statuses", "")

		return err == nil && strings.Contains(text, "teller") && strings.Contains(text, "follower")
	})

	if r, _ := s.get(late); isReconciled(r) {
		s.t.Error("a resource is reconciled although its objects are those of a lost resource")
	}

	if out := s.run(blockSweep); strings.Count(out, "Deleted") < len(restoreAdapters()) {
		s.t.Errorf("sweep deleted too little:\n%s", out)
	}

	s.expectReconciled(late)
	s.eventually("the list of the page is empty", func() bool { return strings.Contains(s.run(blockList), `"items":[]`) })
	s.expectMetric("api", `(?m)^hyperfleet_api_resource_pending_reconciliation\{is_delete="false",resource_type="cluster"\} 0$`)
}

func (s *restoreSite) expectMetric(program, want string) {
	s.t.Helper()

	var page string

	s.eventually(program+" has the metric "+want, func() bool {
		page, _ = call(s.t.Context(), http.MethodGet, "http://"+s.metrics[program]+"/metrics", "")

		return regexp.MustCompile(want).MatchString(page)
	})
}

// TestPostgreSQLPage runs the commands of docs/operate/postgresql.md with all programs. At no time is a resource
// reconciled whose objects differ from its spec, and everything converges without a change on the cluster by hand.
func TestPostgreSQLPage(t *testing.T) {
	t.Parallel()

	s := newRestoreSite(t)
	ended := make(chan struct{})

	var group sync.WaitGroup

	group.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(pollInterval / 2):
				s.findFalseTrue()
			}
		}
	})

	stop := sync.OnceFunc(func() {
		close(ended)
		group.Wait()
	})
	defer stop()

	for round, way := range []string{sameDatabase, whileAPIRuns, anotherDatabase, pointInTime} {
		t.Log(way)
		s.live(round, way)
	}

	// Sentinel was restarted in the first round.
	s.expectMetric("follower", `(?m)^hyperfleet_sentinel_change_cursors_gone_total\{.*\} [4-9]$`)
	s.expectMetric("sentinel", `(?m)^hyperfleet_sentinel_change_cursors_gone_total\{.*\} [3-9]$`)

	if out := s.run(blockSweep); strings.Contains(out, "Delete") {
		t.Errorf("sweep finds more after everything has converged:\n%s", out)
	}

	stop()

	for _, wrong := range s.wrong {
		t.Error(wrong)
	}

	var unmanaged corev1.ConfigMap
	must.Do(t, s.cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "of-somebody"}, &unmanaged))
	s.stop() // before the restored database is dropped
}
