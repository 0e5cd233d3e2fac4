// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
)

func removeLabel(key string) func(*unstructured.Unstructured) {
	return func(o *unstructured.Unstructured) {
		labels := o.GetLabels()
		delete(labels, key)
		o.SetLabels(labels)
	}
}

// TestOnlyVerifiedOrphansAreDeleted checks that sweep deletes only objects with a valid signature whose resource
// the fleet API definitely does not have.
func TestOnlyVerifiedOrphansAreDeleted(t *testing.T) {
	w := newFixture(t)
	alive, gone := newID(), newID()
	w.fleet.existing[alive] = true

	foreign := parseKeys(t, otherKey)
	respond := func(handler http.HandlerFunc) string {
		id := newID()
		w.fleet.responses[id] = handler

		return id
	}
	deleting := strings.Replace(`{"id":"ID","kind":"Cluster","name":"c","href":"/clusters/ID","spec":{},"generation":2,`+
		`"created_time":"2026-01-01T00:00:00Z","updated_time":"2026-01-01T00:00:00Z","deleted_time":"2026-01-01T00:00:00Z","status":{"conditions":[]}}`,
		"ID", alive, 2)

	// A copy of an object with a valid signature, which is valid only for the original.
	original := w.create("ConfigMap", "original", gone)
	copied := func(o *unstructured.Unstructured) {
		o.SetLabels(original.GetLabels())
		o.SetAnnotations(original.GetAnnotations())
	}

	detach := func(o *unstructured.Unstructured) {
		patched, err := transport.ApplyMergePatch(o.Object, stamp.New(w.adapter, w.keys).DetachPatch(o, o.GroupVersionKind().GroupKind(), gone))
		if err != nil {
			t.Fatal(err)
		}

		o.Object = patched
	}

	tests := []struct {
		name, kind, id string
		change         func(*unstructured.Unstructured)
		want           string
	}{
		{name: "gone", id: gone, want: "Deleted"},
		{name: "gone-secret", kind: "Secret", id: gone, want: "Deleted"},
		{name: "gone-namespace-" + w.namespace, kind: "Namespace", id: gone, want: "Deleted"},
		{name: "gone-manifest-work", kind: "ManifestWork", id: gone, want: "Deleted"},
		{name: "gone-elsewhere", kind: inAnotherNamespace, id: gone, want: "Deleted"},
		{name: "no-adapter", id: gone, change: removeLabel(adapter.LabelAdapter), want: "Deleted"},
		{name: "no-adapter-forged", id: gone, change: func(o *unstructured.Unstructured) {
			copied(o)
			removeLabel(adapter.LabelAdapter)(o)
		}},
		{name: "detached", id: gone, change: detach},
		{name: "alive", id: alive},
		{name: "alive-manifest-work", kind: "ManifestWork", id: alive},
		{name: "being-deleted", id: respond(respondWith(200, "application/json", deleting))},
		{name: "no-body", id: respond(respondWith(404, "", "")), want: "Skipped AmbiguousResponse"},
		{name: "proxys-page", id: respond(respondWith(404, "text/html", "<h1>404</h1>")), want: "Skipped AmbiguousResponse"},
		{name: "no-route", id: respond(respondProblem(404, "HYPERFLEET-NTF-000")), want: "Skipped AmbiguousResponse"},
		{name: "other-status", id: respond(respondProblem(410, "HYPERFLEET-NTF-001")), want: "Skipped AmbiguousResponse"},
		{name: "outage", id: respond(respondWith(500, "", "")), want: "Skipped AmbiguousResponse"},
		{name: "refused", id: respond(respondProblem(403, "HYPERFLEET-AUZ-001")), want: "Skipped AmbiguousResponse"},
		{name: "login-page", id: respond(respondWith(200, "text/html", "<form>")), want: "Skipped AmbiguousResponse"},
		{name: "forged-id", id: alive, change: setLabel(adapter.LabelResourceID, gone), want: "Skipped Forged"},
		{name: "no-hmac", id: gone, change: setAnnotation(adapter.AnnotationIdentity, ""), want: "Skipped NotStamped"},
		{name: "copy", id: gone, change: copied, want: "Skipped Forged"},
		{name: "copy-as-secret", kind: "Secret", id: gone, change: copied, want: "Skipped Forged"},
		{name: "garbage-hmac", id: gone, change: setAnnotation(adapter.AnnotationIdentity, "v1.x"), want: "Skipped UnknownKey"},
		{name: "other-key", id: gone, change: func(o *unstructured.Unstructured) {
			setAnnotation(adapter.AnnotationIdentity, foreign.Sign(stamp.Identity{
				Adapter: w.adapter, ResourceID: gone, Kind: "ConfigMap", Namespace: w.namespace, Name: o.GetName(),
			}, 1, ""))(o)
		}, want: "Skipped UnknownKey"},
		{name: "no-uuid", id: gone, change: setLabel(adapter.LabelResourceID, "cluster-1"), want: "Skipped NoResourceID"},
		{name: "no-id", id: gone, change: func(o *unstructured.Unstructured) {
			o.SetLabels(map[string]string{adapter.LabelAdapter: w.adapter})
		}, want: "Skipped NoResourceID"},
	}

	made := make([]*unstructured.Unstructured, len(tests))

	for i, tc := range tests {
		if tc.kind == "" {
			tc.kind = "ConfigMap"
		}

		if tc.change == nil {
			tc.change = func(*unstructured.Unstructured) {}
		}

		made[i] = w.create(tc.kind, tc.name, tc.id, tc.change)
	}

	report := w.mustRun()

	for i, tc := range tests {
		if got := outcomeOf(report, tc.name); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}

		if got := w.isLeft(made[i]); got == (tc.want == "Deleted") {
			t.Errorf("%s: exists: %v", tc.name, got)
		}
	}

	if w.fleet.requests[gone] != 1 {
		t.Errorf("the fleet API got %d requests for one resource, want 1", w.fleet.requests[gone])
	}

	if !report.IsIncomplete() {
		t.Error("the report is complete although responses were not clear")
	}
}

// TestYoungAndTerminatingObjectsAreSkipped checks that sweep skips objects that are too young, and objects that
// are being deleted.
func TestYoungAndTerminatingObjectsAreSkipped(t *testing.T) {
	w := newFixture(t)
	w.clock = clock.RealClock{}
	young := w.create("ConfigMap", "young", newID())

	report := w.mustRun()
	if got := outcomeOf(report, "young"); got != "Skipped TooYoung" || !w.isLeft(young) {
		t.Errorf("young: %s", got)
	}

	leaving := w.create("ConfigMap", "leaving", newID(), func(o *unstructured.Unstructured) { o.SetFinalizers([]string{"test/hold"}) })
	if err := env.Client.Delete(t.Context(), leaving); err != nil {
		t.Fatal(err)
	}

	w.clock = testclock.NewFakeClock(time.Now().Add(time.Hour))
	if got := outcomeOf(w.mustRun(), "leaving"); got != "Skipped Deleting" {
		t.Errorf("leaving: %s", got)
	}
}

// TestConcurrentlyChangedObjectsAreSkipped checks that sweep skips objects that change, are replaced or are
// deleted after it has listed them.
func TestConcurrentlyChangedObjectsAreSkipped(t *testing.T) {
	w := newFixture(t)
	changed, replaced, vanished := newID(), newID(), newID()
	gone := respondProblem(http.StatusNotFound, "HYPERFLEET-NTF-001")
	objects := map[string]*unstructured.Unstructured{}

	for name, id := range map[string]string{"changed": changed, "replaced": replaced, "vanished": vanished} {
		objects[name] = w.create("ConfigMap", name, id)
	}

	w.fleet.responses[changed] = func(rw http.ResponseWriter, r *http.Request) {
		o := objects["changed"].DeepCopy()
		o.SetLabels(nil) // detached

		if err := env.Client.Update(r.Context(), o); err != nil {
			t.Error(err)
		}

		gone(rw, r)
	}
	w.fleet.responses[replaced] = func(rw http.ResponseWriter, r *http.Request) {
		again := objects["replaced"].DeepCopy()
		if err := env.Client.Delete(r.Context(), objects["replaced"]); err != nil {
			t.Error(err)
		}

		again.SetUID("")
		again.SetResourceVersion("")

		if err := env.Client.Create(r.Context(), again); err != nil {
			t.Error(err)
		}

		gone(rw, r)
	}
	w.fleet.responses[vanished] = func(rw http.ResponseWriter, r *http.Request) {
		if err := env.Client.Delete(r.Context(), objects["vanished"]); err != nil {
			t.Error(err)
		}

		gone(rw, r)
	}

	report := w.mustRun()

	got := map[string]string{}
	for name := range objects {
		got[name] = outcomeOf(report, name)
	}

	want := map[string]string{"changed": "Skipped Changed", "replaced": "Skipped Changed", "vanished": "Skipped Deleting"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}

	if !w.isLeft(objects["changed"]) || !w.isLeft(objects["replaced"]) {
		t.Error("an object that had changed was deleted")
	}
}

// TestLimits checks that sweep deletes nothing if there are more orphans than the limits allow.
func TestLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		gone, alive, deletions int
		share                  float64
		stopped                string
	}{
		"at the cap":   {gone: 3, alive: 3, deletions: 3, share: 1},
		"over the cap": {gone: 4, alive: 4, deletions: 3, share: 1, stopped: "max_deletions"},
		"all of few":   {gone: 5, deletions: 100, share: 0.5},
		"all of many, as after a data loss of the API": {gone: 6, deletions: 100, share: 0.5, stopped: "max_share"},
		"all of many with share 1":                     {gone: 6, deletions: 100, share: 1},
		"half":                                         {gone: 4, alive: 4, deletions: 100, share: 0.5},
		"cap 0":                                        {gone: 1, deletions: 0, share: 1, stopped: "max_deletions"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			w.config.MaxDeletions, w.config.MaxShare = tc.deletions, tc.share

			var doomed []*unstructured.Unstructured

			for i := range tc.gone {
				doomed = append(doomed, w.create("ConfigMap", fmt.Sprintf("gone-%d", i), newID()))
			}

			for i := range tc.alive {
				id := newID()
				w.fleet.existing[id] = true
				w.create("ConfigMap", fmt.Sprintf("alive-%d", i), id)
			}

			report := w.mustRun()

			if (report.Stopped == "") != (tc.stopped == "") || !strings.Contains(report.Stopped, tc.stopped) {
				t.Errorf("stopped: %q, want %q", report.Stopped, tc.stopped)
			}

			for _, o := range doomed {
				if w.isLeft(o) != (tc.stopped != "") {
					t.Errorf("%s: exists: %v", o.GetName(), w.isLeft(o))
				}
			}

			want := map[string]int{"Kept": tc.alive, "Deleted": tc.gone}
			if tc.stopped != "" {
				want = map[string]int{"Kept": tc.alive, "Skipped": tc.gone}
			}

			for outcome, n := range want {
				if report.Outcomes[outcome] != n {
					t.Errorf("%s: %d, want %d", outcome, report.Outcomes[outcome], n)
				}
			}
		})
	}
}

// TestInvalidAPIResponsesStopSweep checks that sweep stops if the fleet API fails its probe, before it requests
// any resource.
func TestInvalidAPIResponsesStopSweep(t *testing.T) {
	for name, spoil := range map[string]func(*fakeAPI){
		"the same page for every request":       func(f *fakeAPI) { f.list = respondWith(200, "text/html", "<h1>welcome</h1>"); f.missing = f.list },
		"no route":                              func(f *fakeAPI) { f.list = respondProblem(404, "HYPERFLEET-NTF-000") },
		"404 without a body":                    func(f *fakeAPI) { f.list = respondWith(404, "", ""); f.missing = f.list },
		"an outage":                             func(f *fakeAPI) { f.list = respondWith(503, "", "") },
		"no resource is missing":                func(f *fakeAPI) { f.missing = respondResource(newID()) },
		"404 of a missing resource is no route": func(f *fakeAPI) { f.missing = respondProblem(404, "HYPERFLEET-NTF-000") },
		"404 of a missing resource depends on the tenant": func(f *fakeAPI) {
			missing := respondProblem(404, "HYPERFLEET-NTF-001")
			f.missing = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set(openapi.HeaderTenant, "one")
				missing(w, r)
			}
		},
		"404 of a missing resource has no body": func(f *fakeAPI) { f.missing = respondWith(404, "", "") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t)
			id := newID()
			w.fleet.responses[id] = respondProblem(404, "HYPERFLEET-NTF-001")
			o := w.create("ConfigMap", "gone", id)

			spoil(w.fleet)

			if _, err := w.run(); err == nil || !strings.Contains(err.Error(), "probe the fleet API") || !w.isLeft(o) {
				t.Errorf("error %v, object exists: %v", err, w.isLeft(o))
			}

			if w.fleet.requests[id] != 0 {
				t.Error("sweep requested a resource")
			}
		})
	}
}

// TestOtherAdaptersAndKindsAreSkipped checks that sweep ignores objects of other adapters and of excluded kinds.
func TestOtherAdaptersAndKindsAreSkipped(t *testing.T) {
	w := newFixture(t)
	mine := w.create("ConfigMap", "mine", newID())
	secret := w.create("Secret", "secret", newID())

	w.config.ExcludedKinds = []string{"Secret"}
	other := w.adapter
	w.adapter = "other-" + w.namespace
	theirs := w.create("ConfigMap", "theirs", newID())
	w.adapter = other

	report := w.mustRun()
	if w.isLeft(mine) || !w.isLeft(secret) || !w.isLeft(theirs) || report.Objects != 1 {
		t.Errorf("existing objects: mine %v, secret %v, theirs %v: %+v", w.isLeft(mine), w.isLeft(secret), w.isLeft(theirs), report)
	}
}

// TestConfiguredKinds checks that sweep lists only the configured kinds, and logs which of them it skips because
// they are excluded or not served.
func TestConfiguredKinds(t *testing.T) {
	w := newFixture(t)
	mine := w.create("ConfigMap", "mine", newID())
	secret := w.create("Secret", "secret", newID())

	w.config.Kinds = []string{"ConfigMap", "Secret", "Widget.example.com"}
	w.config.ExcludedKinds = []string{"Secret"}

	report, err := w.run()
	if err != nil || w.isLeft(mine) || !w.isLeft(secret) || report.Kinds != 1 || report.Objects != 1 || report.IsIncomplete() {
		t.Errorf("existing objects: mine %v, secret %v; error %v: %+v", w.isLeft(mine), w.isLeft(secret), err, report)
	}

	if got := w.log.String(); !strings.Contains(got, "kind=Widget.example.com") || !strings.Contains(got, "kind=Secret") {
		t.Errorf("the log does not have the skipped kinds: %s", got)
	}
}

// TestBrokenAPIGroupIsReported checks that sweep reports an API group that cannot be discovered, and sweeps the
// others.
func TestBrokenAPIGroupIsReported(t *testing.T) {
	w := newFixture(t)
	o := w.create("ConfigMap", "gone", newID())

	env.Apply(t, "testdata/broken/apiservice.yaml")

	service := &unstructured.Unstructured{}
	service.SetAPIVersion("apiregistration.k8s.io/v1")
	service.SetKind("APIService")
	service.SetName("v1.broken.example.com")
	t.Cleanup(func() {
		if err := env.Client.Delete(context.Background(), service); err != nil {
			t.Error(err)
		}
	})

	report := w.mustRun()
	if w.isLeft(o) {
		t.Error("the object of another group was not deleted")
	}

	// The API server serves a new group with a delay.
	for begun := time.Now(); len(report.Errors) == 0 && time.Since(begun) < time.Minute; report = w.mustRun() {
		time.Sleep(50 * time.Millisecond)
	}

	if text := strings.Join(report.Errors, "\n"); !strings.Contains(text, "broken.example.com") || !report.IsIncomplete() {
		t.Errorf("errors are %q, want the broken group", text)
	}

	w.config.Kinds = []string{"ConfigMap"}
	if report := w.mustRun(); report.IsIncomplete() {
		t.Errorf("a broken group without configured kinds is reported: %q", report.Errors)
	}
}

// TestReport checks the JSON and the text of the report of a dry run.
func TestReport(t *testing.T) {
	w := newFixture(t)
	w.config.Delete = sweep.Defaults().Delete // a dry run is the default
	id := newID()
	o := w.create("ConfigMap", "gone", id)

	report := w.mustRun()
	if !w.isLeft(o) {
		t.Error("the dry run deleted an object")
	}

	encoded, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{`"dry_run":true`, `"resource_id":"` + id, `"outcome":"WouldDelete"`, `"api_version":"v1"`, `"gone":1`} {
		if !strings.Contains(string(encoded), want) {
			t.Errorf("%s lacks %s", encoded, want)
		}
	}

	var text strings.Builder
	if err := report.Print(&text); err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{"ConfigMap " + w.namespace + "/gone", "dry run: 1 would be deleted"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s lacks %s", text.String(), want)
		}
	}
}

// TestForceDeletedResources checks with the real fleet API that the objects of force-deleted resources are swept,
// and those of other resources are not, even if they are being deleted.
func TestForceDeletedResources(t *testing.T) {
	w := newFixture(t)

	served, url := fleetapi.Serve(t, database, platform.Entity{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"landing"}})
	w.real = served

	call := func(method, path, body string) string {
		request, err := http.NewRequest(method, url+"/api/hyperfleet/v1"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}

		request.Header.Set("Content-Type", "application/json")

		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()

		var made struct{ ID string }
		if err := json.NewDecoder(response.Body).Decode(&made); response.StatusCode > 299 || err != nil && response.StatusCode != http.StatusNoContent {
			t.Fatalf("%s %s: %d %v", method, path, response.StatusCode, err)
		}

		return made.ID
	}

	objects := map[string]*unstructured.Unstructured{}

	for name, kind := range map[string]string{"alive": "ConfigMap", "deleting": "ConfigMap", "forced": "ConfigMap", "forced-work": "ManifestWork"} {
		id := call(http.MethodPost, "/clusters", `{"name":"`+name+`","spec":{}}`)
		objects[name] = w.create(kind, name, id)

		if name != "alive" {
			call(http.MethodDelete, "/clusters/"+id, "")
		}

		if strings.HasPrefix(name, "forced") {
			call(http.MethodPost, "/clusters/"+id+"/force-delete", `{"reason":"a test"}`)
		}
	}

	if report := w.mustRun(); report.IsIncomplete() || report.Outcomes[sweep.Deleted] != 2 || report.Outcomes[sweep.Kept] != 2 {
		t.Errorf("%+v", report)
	}

	for name, o := range objects {
		if w.isLeft(o) == strings.HasPrefix(name, "forced") {
			t.Errorf("%s: exists: %v", name, w.isLeft(o))
		}
	}
}
