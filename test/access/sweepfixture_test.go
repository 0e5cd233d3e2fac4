// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
	"github.com/hyperfleet/hyperfleet/test/capture"
)

const (
	testKey  = "0123456789abcdef0123456789abcdef"
	otherKey = "fedcba9876543210fedcba9876543210"
)

// fakeAPI responds like the fleet API (api/openapi), or with configured responses.
type fakeAPI struct {
	mu sync.Mutex
	// existing are the IDs of the resources that exist.
	existing map[string]bool
	// responses are the responses to requests for one resource, by its ID.
	responses map[string]http.HandlerFunc
	// list is the response to the list of resources if it is set, and missing the response for an unknown ID.
	list, missing http.HandlerFunc
	requests      map[string]int
}

// respondProblem responds with a problem document.
func respondProblem(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"type":"about:blank","title":"no","status":%d,"code":%q}`, status, code)
	}
}

// respondWith responds with a status, content type and body.
func respondWith(status int, media, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// respondResource responds with a resource.
func respondResource(id string) http.HandlerFunc {
	return respondWith(http.StatusOK, "application/json", `{"id":"`+id+`","kind":"Cluster","name":"c","href":"/clusters/`+id+
		`","spec":{},"generation":1,"created_time":"2026-01-01T00:00:00Z","updated_time":"2026-01-01T00:00:00Z","status":{"conditions":[]}}`)
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	id, single := strings.CutPrefix(r.URL.Path, "/api/hyperfleet/v1/resources/")

	if f.requests == nil {
		f.requests = map[string]int{}
	}
	f.requests[id]++

	handler := f.missing
	if handler == nil {
		handler = respondProblem(http.StatusNotFound, "HYPERFLEET-NTF-001")
	}

	switch {
	case !single && f.list != nil:
		handler = f.list
	case !single:
		handler = respondWith(http.StatusOK, "application/json", `{"items":[],"page":1,"size":0,"total":7}`)
	case f.responses[id] != nil:
		handler = f.responses[id]
	case f.existing[id]:
		handler = respondResource(id)
	}
	f.mu.Unlock()

	handler(w, r)
}

// fixture is the environment of a sweep: an adapter, its keys and a fleet API.
type fixture struct {
	t         *testing.T
	adapter   string
	namespace string
	keys      *stamp.Keys
	fleet     *fakeAPI
	// real replaces fleet if it is set.
	real   http.Handler
	config platform.Sweep
	clock  clock.WithTicker
	// as is the configuration of the client that sweeps.
	as  *rest.Config
	log *capture.Buffer
}

func newFixture(t *testing.T) *fixture {
	t.Helper()

	namespace := env.Namespace(t)
	config := sweep.Defaults()
	config.Delete = true
	config.Adapters = []string{"a-" + namespace}
	config.MaxShare = 1

	return &fixture{
		t: t, namespace: namespace, adapter: config.Adapters[0], keys: parseKeys(t, testKey), config: config,
		fleet: &fakeAPI{existing: map[string]bool{}, responses: map[string]http.HandlerFunc{}},
		clock: testclock.NewFakeClock(time.Now().Add(time.Hour)), as: env.Config, log: &capture.Buffer{},
	}
}

func parseKeys(t *testing.T, text string) *stamp.Keys {
	t.Helper()

	keys, err := stamp.ParseKeys([]byte(text))
	if err != nil {
		t.Fatal(err)
	}

	return keys
}

// newAPIClient returns a client of the fixture's fleet API.
func (w *fixture) newAPIClient() *client.Client {
	w.t.Helper()

	handler := http.Handler(w.fleet)
	if w.real != nil {
		handler = w.real
	}

	listening := httptest.NewServer(handler)
	w.t.Cleanup(listening.Close)

	api, err := client.New(platform.APIClient{BaseURL: listening.URL}, client.Options{})
	if err != nil {
		w.t.Fatal(err)
	}

	return api
}

func (w *fixture) run() (sweep.Report, error) {
	w.t.Helper()

	return sweep.Run(w.t.Context(), sweep.Options{
		Config: w.config, Kube: w.as, API: w.newAPIClient(), Keys: w.keys, Clock: w.clock, Log: slog.New(slog.NewTextHandler(w.log, nil)),
	})
}

func (w *fixture) mustRun() sweep.Report {
	w.t.Helper()

	report, err := w.run()
	if err != nil {
		w.t.Fatal(err)
	}

	return report
}

// inAnotherNamespace is a ConfigMap in a namespace of its own.
const inAnotherNamespace = "ConfigMap in another namespace"

// create signs an object with the adapter's key, and creates it.
func (w *fixture) create(kind, name, id string, change ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	w.t.Helper()

	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind}}
	o.SetName(name)

	switch kind {
	case "Namespace":
	case inAnotherNamespace:
		o.SetKind("ConfigMap")
		o.SetNamespace(env.Namespace(w.t))
	case "ManifestWork":
		o.SetAPIVersion("work.open-cluster-management.io/v1")
		o.SetNamespace(w.namespace)
		o.Object["spec"] = map[string]any{}
	case "Job":
		pod := map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "a", "image": "a"}}}
		o.SetAPIVersion("batch/v1")
		o.SetNamespace(w.namespace)
		o.Object["spec"] = map[string]any{"template": map[string]any{"spec": pod}}
	default:
		o.SetNamespace(w.namespace)
	}

	if err := stamp.New(w.adapter, w.keys).SetOwnership(o, stamp.Owner{ResourceID: id, ResourceName: "thing", Generation: 1}); err != nil {
		w.t.Fatal(err)
	}

	for _, f := range change {
		f(o)
	}

	if err := env.Client.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}

	return o
}

// isLeft returns true if an object exists and is not being deleted.
func (w *fixture) isLeft(o *unstructured.Unstructured) bool {
	w.t.Helper()

	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(o.GroupVersionKind())

	err := env.Client.Get(w.t.Context(), kube.ObjectKeyFromObject(o), now)
	if apierrors.IsNotFound(err) {
		return false
	}

	if err != nil {
		w.t.Fatal(err)
	}

	return now.GetDeletionTimestamp() == nil
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

func setLabel(key, value string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		labels := o.GetLabels()
		labels[key] = value
		o.SetLabels(labels)
	}
}

func setAnnotation(key, value string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		annotations := o.GetAnnotations()
		if value == "" {
			delete(annotations, key)
		} else {
			annotations[key] = value
		}
		o.SetAnnotations(annotations)
	}
}

// outcomeOf returns the outcome and reason of an object in the report.
func outcomeOf(report sweep.Report, name string) string {
	for _, item := range report.Items {
		if item.Name == name {
			return strings.TrimSuffix(item.Outcome+" "+item.Reason, " ")
		}
	}

	return ""
}
