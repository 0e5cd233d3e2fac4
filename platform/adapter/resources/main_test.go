// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"log/slog"
	"os"
	"strings"
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
)

const (
	adapterName = "dns"
	patience    = 2 * time.Minute
	// params are those of every task in these tests.
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
	// api is a fleet API.
	api *fleetapi.API
)

func TestMain(m *testing.M) {
	ctx, cancel := context.WithCancel(context.Background())

	code := fleetapi.RunWith(func(a *fleetapi.API) { api = a }, func() int {
		return kube.Run(m, &env, kube.WithCRDs("testdata/admission"), kube.WithSetup(func(context.Context, *rest.Config) error {
			return prepare(ctx)
		}))
	}, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"landing"}})

	cancel()
	os.Exit(code)
}

func prepare(ctx context.Context) error {
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

// fleet is one resource of the API with the adapter that keeps its objects.
type fleet struct {
	testing.TB

	task    *task.Task
	stamper *stamp.Stamper
	clients map[string]transport.Client
	clock   clock.PassiveClock
	ns, id  string
	seen    *resources.Generations
	log     *slog.Logger
	// live has all reads live; behind is what cached reads of one object give.
	live   bool
	behind *unstructured.Unstructured
}

// reads is a client whose cache is as a test wants it.
type reads struct {
	transport.Client

	behind *unstructured.Unstructured
}

func (c reads) Find(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	if read == transport.Cached && c.behind != nil && query.Name != "" {
		return []*unstructured.Unstructured{c.behind.DeepCopy()}, nil
	}

	return c.Client.Find(ctx, query, transport.Live)
}

// one finds the object of a name.
func one(ctx context.Context, c transport.Client, ref transport.Ref, read transport.Read) (*unstructured.Unstructured, error) {
	found, err := c.Find(ctx, transport.Query{GVK: ref.GVK, Namespace: ref.Namespace, Name: ref.Name}, read)
	if err == nil && len(found) == 0 {
		err = transport.ErrNotFound
	}

	if err != nil {
		return nil, err
	}

	return found[0], nil
}

// event is what an event is about, with values for the task's params.
type event struct {
	generation int64
	deleting   bool
	value      string
	flag       bool
	serial     string
}

func newFleet(t testing.TB, taskFile string) *fleet {
	t.Helper()

	return &fleet{
		TB: t, task: load(t, taskFile), stamper: stamperWith(t, strings.Repeat("k", 32)), clients: clients, clock: clock.RealClock{},
		ns: env.Namespace(t), id: uuid.NewString(),
	}
}

func keysWith(t testing.TB, text string) *stamp.Keys {
	t.Helper()

	keys, err := stamp.ParseKeys([]byte(text))
	must(t, err)

	return keys
}

func stamperWith(t testing.TB, text string) *stamp.Stamper {
	t.Helper()

	return stamp.New(adapterName, keysWith(t, text))
}

func load(t testing.TB, taskFile string) *task.Task {
	t.Helper()

	loaded, err := task.Load(fstest.MapFS{"task.yaml": {Data: []byte(params + taskFile)}}, "task.yaml", nil)
	must(t, err)

	return loaded
}

func (f *fleet) input(e event) resources.Input {
	used := f.clients
	if f.live || f.behind != nil {
		used = map[string]transport.Client{transport.Kubernetes: reads{f.clients[transport.Kubernetes], f.behind}}
	}

	return resources.Input{
		Task: f.task, Clients: used, Stamper: f.stamper, ResourceID: f.id, Generation: e.generation, Deleting: e.deleting,
		Clock: f.clock, Generations: f.seen, Log: f.log,
		Vars: map[string]any{
			"ns": f.ns, "id": f.id, "generation": e.generation, "deleting": e.deleting, "value": e.value, "flag": e.flag,
			"serial": e.serial,
		},
	}
}

// run handles an event and gives the outcomes.
func (f *fleet) run(e event) resources.Result {
	f.Helper()

	result, err := resources.Run(f.Context(), f.input(e))
	if err != nil {
		f.Fatal(err)
	}

	return result
}

// want runs an event and compares its outcomes, as operation/reason each; a failure has !
// before it, what is pending ends in ...
func (f *fleet) want(e event, outcomes ...string) resources.Result {
	f.Helper()

	result := f.run(e)
	if got := short(result); strings.Join(got, " ") != strings.Join(outcomes, " ") {
		f.Fatalf("event %+v: outcomes %v, want %v; errors: %v", e, got, outcomes, result.Err())
	}

	return result
}

func short(result resources.Result) []string {
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

func (f *fleet) object(apiVersion, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name, "namespace": f.ns}}}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)

	return o
}

func (f *fleet) configMap(name string) *unstructured.Unstructured {
	return f.object("v1", "ConfigMap", name)
}

// get reads an object live; nil is none.
func (f *fleet) get(o *unstructured.Unstructured) *unstructured.Unstructured {
	f.Helper()

	got := o.DeepCopy()
	if err := env.Client.Get(f.Context(), client.ObjectKeyFromObject(o), got); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		f.Fatal(err)
	}

	return got
}

func (f *fleet) data(name string) map[string]string {
	f.Helper()

	got := f.get(f.configMap(name))
	if got == nil {
		return nil
	}

	values, _, _ := unstructured.NestedStringMap(got.Object, "data")

	return values
}

// edit changes an object as somebody else.
func (f *fleet) edit(o *unstructured.Unstructured, document string) {
	f.Helper()

	patch := client.RawPatch(types.MergePatchType, []byte(document))
	if err := env.Client.Patch(f.Context(), o.DeepCopy(), patch, client.FieldOwner("somebody")); err != nil {
		f.Fatal(err)
	}
}

func (f *fleet) names(kind string) []string {
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

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()

	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}
