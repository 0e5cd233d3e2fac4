// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/maestro"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/sim/ocm/crds"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/must"
)

const (
	adapterName = "dns"
	waitTimeout = 2 * time.Minute
	// params are the params of every task in these tests.
	params = `
params:
  - {name: ns, source: event.ns}
  - {name: id, source: event.id}
  - {name: generation, source: event.generation}
  - {name: deleting, source: event.deleting}
  - {name: value, source: event.value}
  - {name: flag, source: event.flag}
  - {name: serial, source: event.serial}
resources:
`
)

var (
	env     *kube.Env
	clients map[string]transport.Client
	// api is the fleet API of all tests.
	api *fleetapi.API
)

func TestMain(m *testing.M) {
	ctx, cancel := context.WithCancel(context.Background())

	code := fleetapi.RunWith(func(a *fleetapi.API) { api = a }, func() int {
		return kube.Run(m, &env, kube.WithCRDs("testdata/admission"), kube.WithSetup(func(context.Context, *rest.Config) error {
			return prepareCluster(ctx)
		}))
	}, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"landing"}})

	cancel()
	os.Exit(code)
}

func prepareCluster(ctx context.Context) error {
	if err := crds.InstallHub(ctx, env.Config); err != nil {
		return err
	}

	if err := crds.InstallSpoke(ctx, env.Config); err != nil {
		return err
	}

	options := kubernetes.Options{Config: env.Config, Adapter: adapterName}

	direct, err := kubernetes.New(options)
	if err != nil {
		return err
	}

	hub, err := maestro.New(options)
	if err != nil {
		return err
	}

	go func() { _ = direct.Run(ctx) }()
	go func() { _ = hub.Run(ctx) }()

	clients = map[string]transport.Client{transport.Kubernetes: direct, transport.Maestro: hub}

	return nil
}

// fixture is a resource of the API, with the adapter that manages its objects.
type fixture struct {
	testing.TB

	task    *task.Task
	stamper *stamp.Stamper
	clients map[string]transport.Client
	clock   clock.PassiveClock
	ns, id  string
	seen    *resources.Generations
	log     *slog.Logger
	// generation is the generation in the API: that of the newest event, unless a test sets it.
	generation *atomic.Int64
	// If readLive is true, all reads are live. Cached reads of one object return staleObject if it is not
	// nil.
	readLive    bool
	staleObject *unstructured.Unstructured
}

// staleReader is a client whose cached reads return staleObject. Its other reads are live.
type staleReader struct {
	transport.Client

	staleObject *unstructured.Unstructured
}

func (c staleReader) Find(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	if read == transport.Cached && c.staleObject != nil && query.Name != "" {
		return []*unstructured.Unstructured{c.staleObject.DeepCopy()}, nil
	}

	return c.Client.Find(ctx, query, transport.Live)
}

// findOne reads the object with a name.
func findOne(ctx context.Context, c transport.Client, ref transport.Ref, read transport.Read) (*unstructured.Unstructured, error) {
	found, err := c.Find(ctx, transport.Query{GVK: ref.GVK, Namespace: ref.Namespace, Name: ref.Name}, read)
	if err == nil && len(found) == 0 {
		err = transport.ErrNotFound
	}

	if err != nil {
		return nil, err
	}

	return found[0], nil
}

// event is an event, with values for the task's params.
type event struct {
	generation int64
	deleting   bool
	value      string
	flag       bool
	serial     string
}

func newFixture(t testing.TB, taskFile string) *fixture {
	t.Helper()

	return &fixture{
		TB: t, task: loadTask(t, taskFile), stamper: newStamper(t, strings.Repeat("k", 32)), clients: clients, clock: clock.RealClock{},
		ns: env.Namespace(t), id: uuid.NewString(), generation: &atomic.Int64{},
	}
}

func newKeys(t testing.TB, text string) *stamp.Keys {
	t.Helper()

	keys, err := stamp.ParseKeys([]byte(text))
	must.Do(t, err)

	return keys
}

func newStamper(t testing.TB, text string) *stamp.Stamper {
	t.Helper()

	return stamp.New(adapterName, newKeys(t, text))
}

func loadTask(t testing.TB, taskFile string) *task.Task {
	t.Helper()

	loaded, err := task.Load(fstest.MapFS{"task.yaml": {Data: []byte(params + taskFile)}}, "task.yaml", nil)
	must.Do(t, err)

	return loaded
}

func (f *fixture) newInput(e event) resources.Input {
	used := f.clients
	if f.readLive || f.staleObject != nil {
		used = map[string]transport.Client{transport.Kubernetes: staleReader{f.clients[transport.Kubernetes], f.staleObject}}
	}

	return resources.Input{
		Task: f.task, Clients: used, Stamper: f.stamper, ResourceID: f.id, Generation: e.generation, Deleting: e.deleting,
		Clock: f.clock, Generations: f.seen, Log: f.log,
		ReadGeneration: func(context.Context) (int64, error) { return f.generation.Load(), nil },
		Vars: map[string]any{
			"ns": f.ns, "id": f.id, "generation": e.generation, "deleting": e.deleting, "value": e.value, "flag": e.flag,
			"serial": e.serial,
		},
	}
}

// runEvent handles an event and returns the result.
func (f *fixture) runEvent(e event) resources.Result {
	f.Helper()

	if e.generation > f.generation.Load() {
		f.generation.Store(e.generation)
	}

	result, err := resources.Run(f.Context(), f.newInput(e))
	if err != nil {
		f.Fatal(err)
	}

	return result
}

// requireOutcomes handles an event and compares the outcomes, each in the form operation/reason. An outcome
// with an error begins with !, and a pending one ends with ...
func (f *fixture) requireOutcomes(e event, outcomes ...string) resources.Result {
	f.Helper()

	result := f.runEvent(e)
	if got := formatOutcomes(result); strings.Join(got, " ") != strings.Join(outcomes, " ") {
		f.Fatalf("event %+v: outcomes %v, want %v; errors: %v", e, got, outcomes, result.Err())
	}

	return result
}

func formatOutcomes(result resources.Result) []string {
	out := make([]string, 0, len(result.Outcomes))

	for _, o := range result.Outcomes {
		text := string(o.Operation) + "/" + o.Reason
		if o.Err != nil {
			text = "!" + text
		}

		if o.Pending {
			text += "..."
		}

		out = append(out, text)
	}

	return out
}

func (f *fixture) newObject(apiVersion, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name, "namespace": f.ns}}}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)

	return o
}

func (f *fixture) newConfigMap(name string) *unstructured.Unstructured {
	return f.newObject("v1", "ConfigMap", name)
}

// getObject reads an object from the API server. It returns nil if the object does not exist.
func (f *fixture) getObject(o *unstructured.Unstructured) *unstructured.Unstructured {
	f.Helper()

	got := o.DeepCopy()
	if err := env.Client.Get(f.Context(), client.ObjectKeyFromObject(o), got); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		f.Fatal(err)
	}

	return got
}

func (f *fixture) getData(name string) map[string]string {
	f.Helper()

	got := f.getObject(f.newConfigMap(name))
	if got == nil {
		return nil
	}

	values, _, _ := unstructured.NestedStringMap(got.Object, "data")

	return values
}

// patchByHand changes an object as another field owner.
func (f *fixture) patchByHand(o *unstructured.Unstructured, document string) {
	f.Helper()

	patch := client.RawPatch(types.MergePatchType, []byte(document))
	if err := env.Client.Patch(f.Context(), o.DeepCopy(), patch, client.FieldOwner("somebody")); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) listNames(kind string) []string {
	f.Helper()

	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("v1")
	list.SetKind(kind + "List")

	if err := env.Client.List(f.Context(), list, client.InNamespace(f.ns)); err != nil {
		f.Fatal(err)
	}

	var names []string

	for i := range list.Items {
		if name := list.Items[i].GetName(); name != "kube-root-ca.crt" {
			names = append(names, name)
		}
	}

	return names
}
