// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/sentinel"
)

func TestChangesAreToldAtOnce(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	before := a.create("/clusters", "before", nil)
	s := run(t, conf(a.url), to).ready(t)

	to.await(before.Id, 1)

	created := a.create("/clusters", "after", nil)
	said := to.await(created.Id, 1)
	want := map[string]any{"id": created.Id, "kind": "Cluster", "href": created.Href, "generation": 1.0}

	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	e := to.of(created.Id)[0]
	if e.Type() != "io.hyperfleet.cluster.reconcile" || e.Source() != events.Source || e.SpecVersion() != "1.0" ||
		e.Extensions()[events.PartitionKey] != created.Id || len(e.Extensions()[events.ExtensionTraceParent].(string)) != 55 {
		t.Errorf("event %v", e)
	}

	a.do(http.MethodPatch, "/clusters/"+created.Id, map[string]any{"spec": map[string]any{"size": 4}}, nil)

	if said := to.await(created.Id, 2); said["generation"] != 2.0 {
		t.Errorf("after a change: %v", said)
	}

	a.report(created.Id, 2, "True")
	a.do(http.MethodDelete, "/clusters/"+created.Id, nil, nil)

	if said := to.await(created.Id, 3); said["generation"] != 3.0 {
		t.Errorf("after the deletion: %v", said)
	}

	// A report does not cause an event.
	if got := len(to.of(created.Id)); got != 3 {
		t.Errorf("%d events, want 3", got)
	}

	if got := s.metric(t, "events_published_total", `"changed"`); got != 2 {
		t.Errorf("%g events for changes", got)
	}
}

func TestCadences(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	c := conf(a.url)
	c.MaxAgeNotReconciled, c.MaxAgeReconciled = 100*time.Millisecond, time.Second
	s := run(t, c, to).ready(t)

	failing, well := a.create("/clusters", "failing", nil), a.create("/clusters", "well", nil)
	a.report(failing.Id, 1, "False")
	a.report(well.Id, 1, "True")

	to.await(failing.Id, 5)
	eventually(t, "drift is looked for", func() bool { return s.metric(t, "events_published_total", `"drift"`) > 0 })

	bad, good := len(to.of(failing.Id)), len(to.of(well.Id))
	if good*2 > bad {
		t.Errorf("%d events of the reconciled, %d of the other", good, bad)
	}
}

func TestSelectorAndChildren(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	c := conf(a.url)
	c.ResourceType, c.Topic = "nodepools", "clusters"
	c.ResourceSelector = []platform.LabelSelector{{Label: "example.io/tier", Value: "gold"}}
	parent := a.create("/clusters", "parent", nil)
	run(t, c, to).ready(t)

	other := a.create("/clusters/"+parent.Id+"/nodepools", "other", nil)
	pool := a.create("/clusters/"+parent.Id+"/nodepools", "pool", map[string]string{"example.io/tier": "gold"})

	said := to.await(pool.Id, 1)
	want := map[string]any{"id": parent.Id, "kind": "Cluster", "href": parent.Href}

	if diff := cmp.Diff(want, said["owner_references"]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// A resource begins to match the selector, and later stops.
	a.do(http.MethodPatch, "/resources/"+other.Id, map[string]any{"labels": map[string]string{"example.io/tier": "gold"}}, nil)
	to.await(other.Id, 1)
	a.do(http.MethodPatch, "/resources/"+pool.Id, map[string]any{"labels": map[string]string{}}, nil)
	a.do(http.MethodPatch, "/resources/"+pool.Id, map[string]any{"spec": map[string]any{}}, nil)
	a.do(http.MethodPatch, "/resources/"+other.Id, map[string]any{"spec": map[string]any{}}, nil)
	to.await(other.Id, 2)

	if got := len(to.of(pool.Id)); got != 1 {
		t.Errorf("%d events of a resource that does not match any more", got)
	}
}

// TestReplicas checks that one replica sends events, and that another one takes over when the first
// one is gone.
func TestReplicas(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	first := run(t, conf(a.url), to).ready(t)
	eventually(t, "the first leads", func() bool { return first.metric(t, "leader", "") == 1 })

	second := run(t, conf(a.url), to).ready(t)

	ids := make([]string, 30)
	for i := range ids {
		ids[i] = a.create("/clusters", "cluster-"+string(rune('a'+i%26))+strings.Repeat("x", i/26), nil).Id
	}

	for _, id := range ids {
		to.await(id, 1)
		a.report(id, 1, "True")
	}

	for _, id := range ids {
		if got := len(to.of(id)); got != 1 {
			t.Errorf("%d events of %s with two replicas", got, id)
		}
	}

	if first.metric(t, "leader", "") != 1 || second.metric(t, "leader", "") != 0 {
		t.Error("not one leads")
	}

	// A replica without a connection stops sending before another one begins.
	first.set(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") })
	a.do(http.MethodPatch, "/clusters/"+ids[0], map[string]any{"spec": map[string]any{}}, nil)
	to.await(ids[0], 2)
	eventually(t, "the first knows", func() bool {
		return first.metric(t, "leader", "") == 0 && second.metric(t, "leader", "") == 1
	})

	if got := second.metric(t, "events_published_total", ""); got != 1 {
		t.Errorf("the second sent %g events, want the one change", got)
	}

	// A replica that shuts down releases its lease.
	first.set(nil)
	second.end()
	a.do(http.MethodPatch, "/clusters/"+ids[1], map[string]any{"spec": map[string]any{}}, nil)
	to.await(ids[1], 2)
}

// Changes in quick succession are read together, and each resource gets an event.
func TestABurstOfChangesIsReadTogether(t *testing.T) {
	t.Parallel()

	const burst = 60

	a, to := serve(t), newAdapter(t)

	var lists atomic.Int64

	s := run(t, conf(a.url), to).ready(t)
	s.set(func(r *http.Request) (*http.Response, error) {
		if strings.Contains(r.URL.Query().Get("search"), "id in ") {
			lists.Add(1)
		}

		return http.DefaultTransport.RoundTrip(r)
	})

	begun := time.Now()
	ids := make([]string, burst)

	for i := range ids {
		ids[i] = a.create("/clusters", fmt.Sprintf("burst-%02d", i), nil).Id
	}

	for _, id := range ids {
		to.await(id, 1)
	}

	took := time.Since(begun)
	if got := lists.Load(); got == 0 || got > int64(took/sentinel.Round)+2 {
		t.Errorf("%d lists in %s for %d resources made one after another", got, took, burst)
	}
}

func TestABrokerThatRefusesHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	s := run(t, conf(a.url), to).ready(t)

	// The ID is known only after the first event, so the event of the change is rejected.
	bad, good := a.create("/clusters", "bad", nil), a.create("/clusters", "good", nil)
	to.await(bad.Id, 1)
	to.await(good.Id, 1)
	to.set(bad.Id, true)
	a.do(http.MethodPatch, "/clusters/"+bad.Id, map[string]any{"spec": map[string]any{"size": 4}}, nil)
	a.do(http.MethodPatch, "/clusters/"+good.Id, map[string]any{"spec": map[string]any{"size": 4}}, nil)
	to.await(good.Id, 2)
	eventually(t, "it is tried again", func() bool { return s.metric(t, "broker_errors_total", `"publish"`) >= 2 })
	to.set(bad.Id, false)

	if said := to.await(bad.Id, 2); said["generation"] != 2.0 {
		t.Errorf("said %v", said)
	}
}

func TestTheAPIGoesAndComesBack(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	s := run(t, conf(a.url), to).ready(t)

	var down atomic.Bool

	s.set(func(*http.Request) (*http.Response, error) {
		if down.Load() {
			return nil, errors.New("connection refused")
		}

		return nil, nil //nolint:nilnil // the request passes
	})
	down.Store(true)

	created := a.create("/clusters", "meanwhile", nil)
	eventually(t, "errors are counted", func() bool { return s.metric(t, "api_errors_total", "") > 0 })
	down.Store(false)
	to.await(created.Id, 1)
}

func TestACursorThatIsGone(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	s := run(t, conf(a.url), to).ready(t)

	// All cursors are rejected until Sentinel requests a new one.
	var listed atomic.Bool

	s.set(func(r *http.Request) (*http.Response, error) {
		if strings.HasSuffix(r.URL.Path, "/changes") && !r.URL.Query().Has("after") {
			listed.Store(true)
		}

		if !strings.HasSuffix(r.URL.Path, "/changes") || listed.Load() {
			return nil, nil //nolint:nilnil // the request passes
		}

		return &http.Response{
			StatusCode: http.StatusGone, Header: http.Header{"Content-Type": {"application/problem+json"}},
			Body: io.NopCloser(strings.NewReader(`{"type":"about:blank","title":"Gone","status":410,"code":"HYPERFLEET-VAL-010"}`)),
		}, nil
	})

	first := a.create("/clusters", "first", nil)
	to.await(first.Id, 1)
	second := a.create("/clusters", "second", nil)
	to.await(second.Id, 1)
	eventually(t, "all is listed again", func() bool { return s.metric(t, "change_cursors_gone_total", "") == 1 })
	third := a.create("/clusters", "third", nil)
	to.await(third.Id, 1)
}

func TestExpressions(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	existing := a.create("/clusters", "existing", map[string]string{"shard": "none"})
	c := conf(a.url)
	c.MessageDecision = &platform.Decision{
		Params: []platform.DecisionParam{
			{Name: "reconciled", Expr: `condition("Reconciled") // of all adapters`},
			{Name: "age", Expr: `now - reconciled.last_updated_time`},
			{Name: "quota", Expr: `condition("Qutoa").status == "True"`},
		},
		Result: `resource.labels.shard == "a" && age < duration("1h") && resource.spec.size == 3 && !quota ||
			resource.labels.shard == "b" && resource.generation > 1`,
	}
	c.MessageData = map[string]any{
		"shard": "resource.labels.shard", "why": "reason", "nothing": "resource.?nothing",
		"origin": map[string]any{"region": `"eu"`, "number": 3},
	}
	s := run(t, c, to).ready(t)

	created := a.create("/clusters", "created", map[string]string{"shard": "a"})
	bare := a.create("/clusters", "bare", nil)
	want := map[string]any{
		"id": created.Id, "kind": "Cluster", "href": created.Href, "generation": 1.0,
		"shard": "a", "why": "message_decision", "origin": map[string]any{"region": "eu", "number": 3.0},
	}

	if diff := cmp.Diff(want, to.await(created.Id, 1)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	eventually(t, "the error is counted", func() bool { return s.metric(t, "expression_errors_total", "") > 0 })

	if len(to.of(bare.Id)) != 0 || len(to.of(existing.Id)) != 0 {
		t.Error("events of resources that the decision is not true of")
	}

	if err := s.CheckReady(t.Context()); err != nil {
		t.Errorf("Ready() = %v", err)
	}

	if err := s.CheckLive(t.Context()); err != nil {
		t.Errorf("Live() = %v", err)
	}

	if text := s.log.String(); !strings.Contains(text, "[Qutoa]") {
		t.Error("no warning of a condition that no resource has")
	}
}

// The change feed does not contain reports that repeat the previous one. An expression that depends
// on the time of the last report is evaluated with the state that was read last, which may be too
// old. So Sentinel reads the resource again before it sends an event.
func TestWhatWasReportedAgainIsNotDue(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	old, again := a.create("/clusters", "old", nil), a.create("/clusters", "again", nil)

	for _, one := range []openapi.Resource{old, again} {
		a.report(one.Id, 1, "True")
	}

	// Times have the precision of the database.
	time.Sleep(time.Millisecond)

	reported, begin := time.Now(), time.Now()
	stamp := func(at time.Time) string { return `timestamp("` + at.UTC().Format(time.RFC3339Nano) + `")` }

	c := conf(a.url)
	c.RelistInterval = 24 * time.Hour
	c.MessageDecision = &platform.Decision{
		Result: "now > " + stamp(begin.Add(time.Hour)) + ` && condition("Reconciled").last_updated_time < ` + stamp(reported),
	}

	at := clocktesting.NewFakeClock(begin)
	s := runAt(t, c, to, at).ready(t)
	pages := s.metric(t, "list_pages_total", "")

	a.report(again.Id, 1, "True")
	at.Step(time.Hour)
	eventually(t, "events of what was not reported again", func() bool {
		at.Step(c.PollInterval)

		return len(to.of(old.Id)) > 2
	})

	if sent := to.of(again.Id); len(sent) != 0 {
		t.Errorf("%d events of what was reported again", len(sent))
	}

	if s.metric(t, "list_pages_total", "") == pages {
		t.Error("nothing was read again")
	}
}

// TestRelist checks that the periodic list finds changes that the change feed missed.
func TestRelist(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	c := conf(a.url)
	c.RelistInterval, c.PageSize = time.Second, 2
	s := run(t, c, to).ready(t)

	s.set(func(r *http.Request) (*http.Response, error) {
		if !strings.HasSuffix(r.URL.Path, "/changes") {
			return nil, nil //nolint:nilnil // the request passes
		}

		<-r.Context().Done()

		return nil, r.Context().Err()
	})

	var ids []string
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		ids = append(ids, a.create("/clusters", name, nil).Id)
	}

	for _, id := range ids {
		to.await(id, 1)
	}

	a.do(http.MethodDelete, "/clusters/"+ids[2], nil, nil)
	a.do(http.MethodPost, "/clusters/"+ids[2]+"/force-delete", map[string]any{"reason": "a test"}, nil)
	eventually(t, "it is forgotten", func() bool { return s.metric(t, "known_resources", "") == 4 })
}

func TestAnUnknownCollectionIsNotReady(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newAdapter(t)
	c := conf(a.url)
	c.ResourceType = "castles"
	s := run(t, c, to)

	eventually(t, "it is said", func() bool { return strings.Contains(s.log.String(), "castles") })

	if err := s.CheckReady(t.Context()); err == nil {
		t.Error("ready")
	}
}

// The tests of this file set the trace provider of the whole process, so they are not parallel.

func record(t *testing.T, sampler sdktrace.Sampler) *tracetest.InMemoryExporter {
	t.Helper()

	spans := tracetest.NewInMemoryExporter()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sampler)))
	t.Cleanup(func() { otel.SetTracerProvider(noop.NewTracerProvider()) })

	return spans
}

// sendings returns the spans of Sentinel. The API of these tests runs in the same process.
func sendings(spans *tracetest.InMemoryExporter) tracetest.SpanStubs {
	return slices.DeleteFunc(spans.GetSpans(), func(one tracetest.SpanStub) bool { return one.Name != "send event" })
}

// sendTwo makes Sentinel send two events, and returns their trace contexts.
func sendTwo(t *testing.T) (*replica, []string) {
	t.Helper()

	a, to := serve(t), newAdapter(t)
	r := run(t, conf(a.url), to).ready(t)

	var parents []string

	for _, name := range []string{"one", "two"} {
		made := a.create("/clusters", name, nil)
		to.await(made.Id, 1)

		parent, _ := to.of(made.Id)[0].Extensions()[events.ExtensionTraceParent].(string)
		parents = append(parents, parent)
	}

	r.end()

	return r, parents
}

func TestTheTraceOfEvents(t *testing.T) {
	for name, tc := range map[string]struct {
		sampler  sdktrace.Sampler
		flags    string
		exported int
	}{
		"off":         {nil, "-01", 0},
		"sampled":     {sdktrace.AlwaysSample(), "-01", 2},
		"not sampled": {sdktrace.NeverSample(), "-00", 0},
	} {
		t.Run(name, func(t *testing.T) {
			spans := tracetest.NewInMemoryExporter()
			if tc.sampler != nil {
				spans = record(t, tc.sampler)
			}

			r, parents := sendTwo(t)

			for i, parent := range parents {
				if len(parent) != 55 || !strings.HasPrefix(parent, "00-") || !strings.HasSuffix(parent, tc.flags) {
					t.Fatalf("trace context %q", parent)
				}

				if parent[3:35] == parents[1-i][3:35] {
					t.Errorf("two events in one trace: %q", parents)
				}

				if !strings.Contains(r.log.String(), "traceId="+parent[3:35]) {
					t.Errorf("no line of the log has the trace %s", parent[3:35])
				}
			}

			got := sendings(spans)
			if len(got) != tc.exported {
				t.Fatalf("%d spans", len(got))
			}

			for i := range got {
				in := got[i].SpanContext
				if got[i].SpanKind != trace.SpanKindProducer || got[i].Status.Code != codes.Unset ||
					parents[i] != "00-"+in.TraceID().String()+"-"+in.SpanID().String()+"-01" {
					t.Errorf("span %+v of the event with %s", got[i], parents[i])
				}
			}
		})
	}
}

// TestASpanOfAnEventThatIsNotTaken checks that the span of a rejected event has an error without
// the broker's text, which can contain its address.
func TestASpanOfAnEventThatIsNotTaken(t *testing.T) {
	spans := record(t, sdktrace.AlwaysSample())
	a, to := serve(t), newAdapter(t)
	made := a.create("/clusters", "refused", nil)
	to.set(made.Id, true)

	r := run(t, conf(a.url), to).ready(t)
	eventually(t, "the event is refused", func() bool { return strings.Contains(r.log.String(), errRefused.Error()) })
	to.set(made.Id, false)
	to.await(made.Id, 1)
	r.end()

	got := sendings(spans)
	if len(got) < 2 || got[0].Status.Code != codes.Error || got[0].Status.Description != "publish" || len(got[0].Events) != 0 ||
		got[len(got)-1].Status.Code != codes.Unset {
		t.Errorf("spans %+v", got)
	}
}
