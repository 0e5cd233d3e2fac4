// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

// truthTask has an object with a fixed name, one whose name can change, one with earlier versions, and one with a gate.
const truthTask = `
params:
  - {name: id, source: event.id, required: true}
  - {name: generation, source: event.generation, type: int, required: true}
preconditions:
  - name: cluster
    api_call: {method: GET, url: "clusters/{{ .id }}"}
    capture:
      - {name: value, field: spec.value}
      - {name: serial, field: spec.serial}
      - {name: deleting, expression: 'response.?deleted_time.hasValue()'}
resources:
  - name: fixed
    manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: "c-{{ .id }}", namespace: NAMESPACE}, data: {value: "{{ .value }}"}}
    discovery: {namespace: NAMESPACE, by_name: "c-{{ .id }}"}
    lifecycle: {delete: {when: {expression: deleting}}}
  - name: named
    manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: "n-{{ .serial }}-{{ .id }}", namespace: NAMESPACE}, data: {value: "{{ .value }}"}}
    discovery: {namespace: NAMESPACE, by_name: "n-{{ .serial }}-{{ .id }}"}
    lifecycle: {delete: {when: {expression: deleting}}}
  - name: history
    manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: "h-{{ .serial }}-{{ .generation }}-{{ .id }}", namespace: NAMESPACE}, data: {value: "{{ .value }}"}}
    discovery:
      namespace: NAMESPACE
      by_selectors: {label_selector: {hyperfleet.io/resource-id: "{{ .id }}", hyperfleet.io/resource-name: history}}
    retention: {historyLimit: 1}
    lifecycle: {delete: {when: {expression: deleting}}}
  - name: gated
    manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: "g-{{ .id }}", namespace: NAMESPACE}, data: {value: "{{ .value }}"}}
    discovery: {namespace: NAMESPACE, by_name: "g-{{ .id }}"}
    lifecycle:
      apply: {when: {expression: '!resources.?gated.hasValue() || !value.startsWith("hold")'}}
      delete: {when: {expression: deleting}}
post:
  payloads:
    - name: report
      build:
        adapter: "{{ .adapter.name }}"
        observed_generation: {expression: generation}
        observed_time: "{{ now }}"
        conditions:
          - {type: Applied, status: "True"}
          - {type: Health, status: "True"}
          - type: Available
            status: {expression: 'adapter.executionStatus == "success" && adapter.resourcesApplied ? "True" : "False"'}
          - type: Finalized
            status: {expression: 'deleting && adapter.executionStatus == "success" && resources.size() == 0 ? "True" : "False"'}
  post_actions:
    - name: tell
      api_call: {method: PUT, url: "clusters/{{ .id }}/statuses", body: "{{ .report }}"}
`

// truthWorld is a fleet API whose database can be restored, and a cluster.
type truthWorld struct {
	*fixture

	url      string
	api      *fleetapi.API
	database *pgx.Conn
	task     *task.Task
	deploy   adapter.Deployment
}

func newTruthWorld(t *testing.T) *truthWorld {
	t.Helper()

	w := &truthWorld{fixture: newFixture(t, "  []"), deploy: newDeployment()}
	databaseURL := postgres.NewDatabase(t)

	var err error

	w.api, err = fleetapi.Open(t.Context(), databaseURL, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{adapterName}})
	must.Do(t, err)

	listening := httptest.NewServer(w.api)
	t.Cleanup(func() {
		listening.Close()
		w.api.Close()
	})

	w.url = listening.URL
	w.deploy.Adapter.Name, w.deploy.Clients.HyperFleetAPI.BaseURL = adapterName, w.url

	w.database, err = pgx.Connect(t.Context(), databaseURL)
	must.Do(t, err)
	t.Cleanup(func() { _ = w.database.Close(context.Background()) })

	for _, table := range []string{"resources", "statuses"} {
		w.execute(fmt.Sprintf("create table dumped_%s as table %s with no data", table, table))
	}

	text := strings.ReplaceAll(truthTask, "NAMESPACE", w.ns)
	w.task, err = task.Load(fstest.MapFS{"t.yaml": {Data: []byte(text)}}, "t.yaml", &w.deploy)
	must.Do(t, err)

	return w
}

func (w *truthWorld) execute(statement string) {
	w.Helper()

	if _, err := w.database.Exec(w.Context(), statement); err != nil {
		w.Fatalf("%s: %v", statement, err)
	}
}

// newProcess starts an adapter, which remembers nothing. Its reads are live, so that no history depends on time.
func (w *truthWorld) newProcess(client transport.Client) *pipeline.Pipeline {
	made, err := pipeline.New(pipeline.Options{
		Deployment: &w.deploy, Task: w.task, Clients: map[string]transport.Client{transport.Kubernetes: client},
		Keys: newKeys(w, strings.Repeat("k", 32)), Clock: instantClock{}, Log: slog.New(slog.DiscardHandler),
	})
	must.Do(w, err)

	return made
}

// history is one run of random steps on one cluster.
type history struct {
	*truthWorld

	process   *pipeline.Pipeline
	creations *creations
	cluster   openapi.Resource
	// writes counts all writes, also those that a restore has undone.
	writes int
	// highest is the highest generation so far, and hasDump is true if there is something to restore.
	highest int32
	hasDump bool
	steps   []string
	problem string
}

var truthNames atomic.Int64

func (w *truthWorld) newHistory(pace uint8) *history {
	h := &history{truthWorld: w, creations: &creations{
		byUID: map[types.UID]metav1.Time{}, latest: time.Now().Add(-time.Hour), pace: pace,
	}}
	h.start()
	h.writes++
	fleetapi.Call(w, http.MethodPost, w.url, "/clusters",
		fmt.Sprintf(`{"name":"c-%d","spec":{"value":"v1","serial":"1"}}`, truthNames.Add(1)), &h.cluster)
	h.highest = h.cluster.Generation

	return h
}

// start starts the adapter.
func (h *history) start() { h.process = h.newProcess(h.newClient()) }

func (h *history) newClient() datingClient {
	return datingClient{staleReader: staleReader{Client: clients[transport.Kubernetes]}, creations: h.creations}
}

// take takes a step, unless an earlier step has found a problem.
func (h *history) take(n int) {
	if h.problem != "" {
		return
	}

	argument := n / 16

	switch n % 16 {
	case 0, 1, 2, 3:
		h.write(argument)
	case 4:
		h.dump()
	case 5, 6:
		h.restore()
	case 7, 8:
		h.edit(argument)
	case 9, 10, 11:
		h.handle("event", h.cluster.Generation)
	case 12:
		h.handle("late event", 1+int32(argument)%h.highest)
	case 13:
		h.steps = append(h.steps, "restart")
		h.start()
	default:
		h.kill(argument)
	}
}

func (h *history) write(argument int) {
	h.writes++

	value, serial := fmt.Sprintf("v%d", h.writes), fmt.Sprint(h.cluster.Spec["serial"])
	if argument%4 == 0 {
		value = fmt.Sprintf("hold%d", h.writes)
	}

	if argument%3 == 0 {
		serial = strconv.Itoa(h.writes)
	}

	h.patch(value, serial)
}

func (h *history) patch(value, serial string) {
	h.cluster = openapi.Resource{}
	fleetapi.Call(h, http.MethodPatch, h.url, "/clusters/"+h.id, fmt.Sprintf(`{"spec":{"value":%q,"serial":%q}}`, value, serial), &h.cluster)
	h.highest = max(h.highest, h.cluster.Generation)
	h.steps = append(h.steps, fmt.Sprintf("write %s, serial %s: generation %d", value, serial, h.cluster.Generation))
}

func (h *history) dump() {
	h.hasDump = true
	h.steps = append(h.steps, fmt.Sprintf("dump of generation %d", h.cluster.Generation))

	for _, table := range []string{"resources", "statuses"} {
		h.execute(fmt.Sprintf("truncate dumped_%s; insert into dumped_%s select * from %s", table, table, table))
	}
}

func (h *history) restore() {
	if !h.hasDump {
		return
	}

	h.execute("begin; delete from resources; insert into resources select * from dumped_resources; " +
		"insert into statuses select * from dumped_statuses; commit")
	h.refresh()
	h.steps = append(h.steps, fmt.Sprintf("restore of generation %d", h.cluster.Generation))
}

// refresh reads the cluster, and returns false if it does not exist.
func (h *history) refresh() bool {
	switch _, err := h.api.Store.Get(h.Context(), h.id); {
	case errors.Is(err, store.ErrNotFound):
		return false
	case err != nil:
		h.Fatal(err)
	}

	h.cluster = openapi.Resource{}
	fleetapi.Call(h, http.MethodGet, h.url, "/clusters/"+h.id, nil, &h.cluster)

	return true
}

// listObjects returns the objects of the cluster by name.
func (h *history) listObjects() map[string]*unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("v1")
	list.SetKind("ConfigMapList")

	must.Do(h, env.Client.List(h.Context(), list, kubeclient.InNamespace(h.ns)))

	out := map[string]*unstructured.Unstructured{}

	for i := range list.Items {
		if strings.HasSuffix(list.Items[i].GetName(), h.id) {
			out[list.Items[i].GetName()] = &list.Items[i]
		}
	}

	return out
}

// edits are changes of marks by hand. Those from unprovable on remove what proves the owner.
var edits = []string{
	`{"annotations":{"hyperfleet.io/generation":"50"}}`,
	`{"annotations":{"hyperfleet.io/generation":"GENERATION"}}`,
	`{"annotations":{"hyperfleet.io/generation":null}}`,
	`{"labels":{"hyperfleet.io/adapter":null}}`,
	`{"labels":{"hyperfleet.io/resource-name":"other"}}`,
	`{"annotations":{"hyperfleet.io/detached":"dns"}}`,
	`{"labels":{"hyperfleet.io/adapter":null},"annotations":{"hyperfleet.io/detached":"dns"}}`,
	`{"annotations":{"hyperfleet.io/identity":null}}`,
	`{"labels":{"hyperfleet.io/adapter":null},"annotations":{"hyperfleet.io/identity":null,"hyperfleet.io/detached":"dns"}}`,
	`{"labels":{"hyperfleet.io/adapter":null,"hyperfleet.io/resource-id":null},"annotations":{"hyperfleet.io/identity":"v2.0.0.0.0"}}`,
}

// unprovable is the number of the edits that keep what proves the owner.
const unprovable = 7

func (h *history) edit(argument int) {
	objects := h.listObjects()
	if len(objects) == 0 {
		return
	}

	names := slices.Sorted(maps.Keys(objects))
	name, edit := names[argument%len(names)], edits[argument/len(names)%unprovable]

	// Only the object with a fixed name is found without its marks.
	if argument%5 == 0 && objects["c-"+h.id] != nil {
		name, edit = "c-"+h.id, edits[unprovable+argument/5%(len(edits)-unprovable)]
	}

	edit = strings.ReplaceAll(edit, "GENERATION", strconv.Itoa(int(h.cluster.Generation)))
	h.steps = append(h.steps, "edit "+name+" "+edit)
	h.patchByHand(objects[name], `{"metadata":`+edit+`}`)
}

// reported returns when the adapter last reported, and whether the API says that the cluster is reconciled.
func (h *history) reported() (at string, isReconciled bool) {
	statuses, err := h.api.Store.Statuses(h.Context(), h.id)
	must.Do(h, err)

	for _, status := range statuses {
		at = status.LastReportTime.String()
	}

	var got openapi.Resource

	fleetapi.Call(h, http.MethodGet, h.url, "/clusters/"+h.id, nil, &got)

	return at, slices.ContainsFunc(got.Status.Conditions, func(c openapi.ResourceCondition) bool {
		return c.Type == "Reconciled" && c.Status == "True" && c.ObservedGeneration == got.Generation
	})
}

// handle handles an event, and checks what the adapter has reported.
func (h *history) handle(what string, generation int32) pipeline.Result {
	before, _ := h.reported()
	result := h.process.Handle(h.Context(), newReconcileEvent(h.id, generation))
	h.steps = append(h.steps, fmt.Sprintf("%s of generation %d: %s %v", what, generation, result.Status, result.Failure))
	h.check(before, result.Status == pipeline.Success)

	return result
}

// kill handles an event in a process that is killed at a write.
func (h *history) kill(argument int) {
	ctx, cancel := context.WithCancel(h.Context())
	defer cancel()

	before, _ := h.reported()
	dying := &dyingClient{datingClient: h.newClient(), left: argument / 2 % 6, isAfterward: argument%2 == 0, kill: cancel}
	h.newProcess(dying).Handle(ctx, newReconcileEvent(h.id, h.cluster.Generation))
	h.steps = append(h.steps, fmt.Sprintf("killed at write %d, afterward %v", argument/2%6, argument%2 == 0))
	h.check(before, false)
}

// check finds a false True: a report of this step that makes the cluster reconciled, while an object has another content.
func (h *history) check(before string, isSuccess bool) {
	after, isReconciled := h.reported()
	if !isReconciled || !isSuccess && after == before {
		return
	}

	h.problem = h.findDifference()
}

// findDifference compares the objects with the cluster in the API.
func (h *history) findDifference() string {
	value, serial := fmt.Sprint(h.cluster.Spec["value"]), fmt.Sprint(h.cluster.Spec["serial"])
	want := map[string]bool{"c-" + h.id: false, "n-" + serial + "-" + h.id: false, "g-" + h.id: false, "h": false}

	for name, object := range h.listObjects() {
		got, _, _ := unstructured.NestedString(object.Object, "data", "value")
		_, isWanted := want[name]

		switch {
		case strings.HasPrefix(name, "h-"):
			want["h"] = want["h"] || got == value
		case !isWanted:
			return name + " is no longer rendered"
		case got != value:
			return fmt.Sprintf("%s has %s, want %s", name, got, value)
		default:
			want[name] = true
		}
	}

	for name, isThere := range want {
		if !isThere {
			return fmt.Sprintf("no %s has %s", name, value)
		}
	}

	return ""
}

// settle lets a person delete what nothing proves, and checks that the cluster becomes reconciled, and that its deletion
// leaves no object.
func (h *history) settle() {
	if h.problem != "" {
		return
	}

	h.writes++
	h.patch(fmt.Sprintf("v%d", h.writes), fmt.Sprint(h.cluster.Spec["serial"]))

	h.deleteUnproven()

	for range 5 {
		h.handle("last event", h.cluster.Generation)

		if h.problem != "" {
			return
		}
	}

	if _, isReconciled := h.reported(); !isReconciled {
		h.problem = "it does not become reconciled"

		return
	}

	h.edit(h.writes*16 + 1)
	fleetapi.Call(h, http.MethodDelete, h.url, "/clusters/"+h.id, nil, nil)

	for range 2 {
		for i := 0; i < 3 && h.refresh(); i++ {
			h.process.Handle(h.Context(), newReconcileEvent(h.id, h.cluster.Generation))
		}

		left := slices.Collect(maps.Keys(h.listObjects()))
		if isGone := !h.refresh(); isGone == (len(left) > 0) {
			h.problem = fmt.Sprintf("the resource is gone: %v, these objects are left: %v", isGone, left)
		}

		// A resource with an object that nothing proves stays until a person has decided.
		h.deleteUnproven()
	}

	if h.problem == "" && h.refresh() {
		h.problem = "the resource stays"
	}
}

// deleteUnproven deletes the objects that nothing proves, as a person does.
func (h *history) deleteUnproven() {
	stamper := stamp.New(adapterName, newKeys(h, strings.Repeat("k", 32)))

	for _, object := range h.listObjects() {
		if ownership, _ := stamper.OwnershipOf(object, object.GroupVersionKind().GroupKind(), h.id); ownership != stamp.Managed {
			must.Do(h, env.Client.Delete(h.Context(), object))
		}
	}
}

// startHistory creates a cluster for a history. pace is that of its creations.
func (w *truthWorld) startHistory(pace uint8) *history {
	h := w.newHistory(pace)
	own := *w.fixture
	own.id = h.cluster.Id
	h.truthWorld = &truthWorld{fixture: &own, url: w.url, api: w.api, database: w.database, task: w.task, deploy: w.deploy}

	return h
}

// TestRestoreIsNoSuccess checks three histories that each ended with Reconciled=True and the content of a lost or an
// earlier generation: a restore whose generation is behind the object, one that has caught up, and an annotation.
func TestRestoreIsNoSuccess(t *testing.T) {
	t.Parallel()

	w := newTruthWorld(t)

	for name, steps := range map[string]func(h *history){
		"behind": func(h *history) { h.writeAndHandle(); h.restore() },
		"caught up": func(h *history) {
			h.writeAndHandle()
			h.restore()

			for range 3 {
				h.write(1)
			}
		},
		"annotation": func(h *history) {
			h.patchByHand(h.newConfigMap("c-"+h.id), `{"metadata":{"annotations":{"hyperfleet.io/generation":"50"}}}`)
			h.write(1)
		},
	} {
		h := w.startHistory(0)
		h.handle("event", h.cluster.Generation)
		h.dump()
		steps(h)
		h.handle("event", h.cluster.Generation)

		_, isReconciled := h.reported()
		if difference := h.findDifference(); h.problem != "" || difference != "" || !isReconciled {
			t.Errorf("%s: reconciled %v, %s\n%s", name, isReconciled, difference, strings.Join(h.steps, "\n"))
		}
	}
}

// writeAndHandle writes three generations, and handles an event of the last.
func (h *history) writeAndHandle() {
	for range 3 {
		h.write(1)
	}

	h.handle("event", h.cluster.Generation)
}

// Property: what an adapter reports is true. After random writes, restores of the database, edits of marks and kills, a
// report never makes a resource reconciled while an object has another content. In the end the resource becomes
// reconciled, and its deletion leaves nothing.
func TestPropertyNoFalseTrue(t *testing.T) {
	t.Parallel()

	const runs = 200

	w := newTruthWorld(t)

	property.Check(t, "no false True", property.Options{Runs: runs, Brief: 12}, prop.ForAll(func(steps []int, pace uint8) string {
		h := w.startHistory(pace)

		for _, step := range steps {
			h.take(step)
		}

		h.settle()

		if h.problem != "" {
			return h.problem + "\n" + strings.Join(h.steps, "\n")
		}

		return ""
	}, limitSize(gen.SliceOf(gen.IntRange(0, 1<<14))), gen.UInt8()))
}
