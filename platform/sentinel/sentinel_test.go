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
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func TestChangesArePublishedAtOnce(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	before := a.create("/clusters", "before", nil)
	s := startReplica(t, newConfig(a.url), to).waitUntilReady(t)

	to.waitForEvents(before.Id, 1)

	created := a.create("/clusters", "after", nil)
	data := to.waitForEvents(created.Id, 1)
	want := map[string]any{"id": created.Id, "kind": "Cluster", "href": created.Href, "generation": 1.0}

	if diff := cmp.Diff(want, data); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	e := to.listEvents(created.Id)[0]
	if e.Type() != "io.hyperfleet.cluster.reconcile" || e.Source() != events.Source || e.SpecVersion() != "1.0" ||
		e.Extensions()[events.PartitionKey] != created.Id || len(e.Extensions()[events.ExtensionTraceParent].(string)) != 55 {
		t.Errorf("event %v", e)
	}

	a.do(http.MethodPatch, "/clusters/"+created.Id, map[string]any{"spec": map[string]any{"size": 4}}, nil)

	if data := to.waitForEvents(created.Id, 2); data["generation"] != 2.0 {
		t.Errorf("event after a change: %v", data)
	}

	a.report(created.Id, 2, "True")
	a.do(http.MethodDelete, "/clusters/"+created.Id, nil, nil)

	if data := to.waitForEvents(created.Id, 3); data["generation"] != 3.0 {
		t.Errorf("event after the deletion: %v", data)
	}

	// A report does not cause an event.
	if got := len(to.listEvents(created.Id)); got != 3 {
		t.Errorf("%d events, want 3", got)
	}

	// An event is counted after it was published.
	timing.WaitUntil(t, "the metric counts two events for changes", func() bool {
		return s.sumMetric(t, "events_published_total", `"changed"`) == 2
	})
}

func TestResyncIntervals(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	c := newConfig(a.url)
	c.MaxAgeNotReconciled, c.MaxAgeReconciled = 100*time.Millisecond, time.Second
	s := startReplica(t, c, to).waitUntilReady(t)

	failing, well := a.create("/clusters", "failing", nil), a.create("/clusters", "well", nil)
	a.report(failing.Id, 1, "False")
	a.report(well.Id, 1, "True")

	to.waitForEvents(failing.Id, 5)
	timing.WaitUntil(t, "an event for drift is sent", func() bool { return s.sumMetric(t, "events_published_total", `"drift"`) > 0 })

	bad, good := len(to.listEvents(failing.Id)), len(to.listEvents(well.Id))
	if good*2 > bad {
		t.Errorf("%d events of the reconciled resource, %d of the failing one", good, bad)
	}
}

func TestSelectorAndChildren(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	c := newConfig(a.url)
	c.ResourceType, c.Topic = "nodepools", "clusters"
	c.ResourceSelector = []platform.LabelSelector{{Label: "example.io/tier", Value: "gold"}}
	parent := a.create("/clusters", "parent", nil)
	startReplica(t, c, to).waitUntilReady(t)

	other := a.create("/clusters/"+parent.Id+"/nodepools", "other", nil)
	pool := a.create("/clusters/"+parent.Id+"/nodepools", "pool", map[string]string{"example.io/tier": "gold"})

	data := to.waitForEvents(pool.Id, 1)
	want := map[string]any{"id": parent.Id, "kind": "Cluster", "href": parent.Href}

	if diff := cmp.Diff(want, data["owner_references"]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	// A resource begins to match the selector, and later stops.
	a.do(http.MethodPatch, "/resources/"+other.Id, map[string]any{"labels": map[string]string{"example.io/tier": "gold"}}, nil)
	to.waitForEvents(other.Id, 1)
	a.do(http.MethodPatch, "/resources/"+pool.Id, map[string]any{"labels": map[string]string{}}, nil)
	a.do(http.MethodPatch, "/resources/"+pool.Id, map[string]any{"spec": map[string]any{}}, nil)
	a.do(http.MethodPatch, "/resources/"+other.Id, map[string]any{"spec": map[string]any{}}, nil)
	to.waitForEvents(other.Id, 2)

	if got := len(to.listEvents(pool.Id)); got != 1 {
		t.Errorf("%d events of a resource that no longer matches", got)
	}
}

// TestReplicas checks that one replica sends events, and that another one takes over when the first
// one is gone.
func TestReplicas(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	first := startReplica(t, newConfig(a.url), to).waitUntilReady(t)
	timing.WaitUntil(t, "the first replica is the leader", func() bool { return first.sumMetric(t, "leader", "") == 1 })

	second := startReplica(t, newConfig(a.url), to).waitUntilReady(t)

	ids := make([]string, 30)
	for i := range ids {
		ids[i] = a.create("/clusters", "cluster-"+string(rune('a'+i%26))+strings.Repeat("x", i/26), nil).Id
	}

	for _, id := range ids {
		to.waitForEvents(id, 1)
		a.report(id, 1, "True")
	}

	for _, id := range ids {
		if got := len(to.listEvents(id)); got != 1 {
			t.Errorf("%d events of %s with two replicas", got, id)
		}
	}

	if first.sumMetric(t, "leader", "") != 1 || second.sumMetric(t, "leader", "") != 0 {
		t.Error("want exactly the first replica to be the leader")
	}

	// A replica without a connection stops sending before another one begins.
	first.intercept(func(*http.Request) (*http.Response, error) { return nil, errors.New("no route to host") })
	a.do(http.MethodPatch, "/clusters/"+ids[0], map[string]any{"spec": map[string]any{}}, nil)
	to.waitForEvents(ids[0], 2)
	timing.WaitUntil(t, "the second replica is the leader", func() bool {
		return first.sumMetric(t, "leader", "") == 0 && second.sumMetric(t, "leader", "") == 1
	})

	if got := second.sumMetric(t, "events_published_total", ""); got != 1 {
		t.Errorf("the second replica sent %g events, want one for the change", got)
	}

	// A replica that shuts down releases its lease.
	first.intercept(nil)
	second.end()
	a.do(http.MethodPatch, "/clusters/"+ids[1], map[string]any{"spec": map[string]any{}}, nil)
	to.waitForEvents(ids[1], 2)
}

// Changes in quick succession are read together, and each resource gets an event.
func TestABurstOfChangesIsReadTogether(t *testing.T) {
	t.Parallel()

	const burst = 60

	a, to := serve(t), newRecordingBroker(t)

	var lists atomic.Int64

	s := startReplica(t, newConfig(a.url), to).waitUntilReady(t)
	s.intercept(func(r *http.Request) (*http.Response, error) {
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
		to.waitForEvents(id, 1)
	}

	took := time.Since(begun)
	if got := lists.Load(); got == 0 || got > int64(took/sentinel.Round)+2 {
		t.Errorf("%d lists in %s for %d resources that were created one after another", got, took, burst)
	}
}

func TestRejectedEventsDoNotBlockOthers(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	c := newConfig(a.url)
	c.PollInterval = time.Hour // only the back-off of the event itself sends it again
	s := startReplica(t, c, to).waitUntilReady(t)

	// The ID is known only after the first event, so the event of the change is rejected.
	bad, good := a.create("/clusters", "bad", nil), a.create("/clusters", "good", nil)
	to.waitForEvents(bad.Id, 1)
	to.waitForEvents(good.Id, 1)
	to.setRejected(bad.Id, true)
	a.do(http.MethodPatch, "/clusters/"+bad.Id, map[string]any{"spec": map[string]any{"size": 4}}, nil)
	a.do(http.MethodPatch, "/clusters/"+good.Id, map[string]any{"spec": map[string]any{"size": 4}}, nil)
	to.waitForEvents(good.Id, 2)
	timing.WaitUntil(t, "the rejected event is retried", func() bool { return s.sumMetric(t, "broker_errors_total", `"publish"`) >= 2 })
	to.setRejected(bad.Id, false)

	if data := to.waitForEvents(bad.Id, 2); data["generation"] != 2.0 {
		t.Errorf("event %v", data)
	}
}

func TestAPIOutage(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	s := startReplica(t, newConfig(a.url), to).waitUntilReady(t)

	var down atomic.Bool

	s.intercept(func(*http.Request) (*http.Response, error) {
		if down.Load() {
			return nil, errors.New("connection refused")
		}

		return nil, nil //nolint:nilnil // the request passes
	})
	down.Store(true)

	created := a.create("/clusters", "meanwhile", nil)
	timing.WaitUntil(t, "errors are counted", func() bool { return s.sumMetric(t, "api_errors_total", "") > 0 })
	down.Store(false)
	to.waitForEvents(created.Id, 1)
}

func TestExpiredCursor(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	s := startReplica(t, newConfig(a.url), to).waitUntilReady(t)
	first := a.create("/clusters", "first", nil)
	to.waitForEvents(first.Id, 1)

	// All cursors are rejected until Sentinel requests a new one.
	var listed atomic.Bool

	s.intercept(func(r *http.Request) (*http.Response, error) {
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

	second := a.create("/clusters", "second", nil)
	to.waitForEvents(second.Id, 1)
	timing.WaitUntil(t, "all resources are listed again", func() bool { return s.sumMetric(t, "change_cursors_gone_total", "") == 1 })
	third := a.create("/clusters", "third", nil)
	to.waitForEvents(third.Id, 1)
	// The database may have been restored, so what was sent before does not count.
	to.waitForEvents(first.Id, 2)
}

func TestExpressions(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	existing := a.create("/clusters", "existing", map[string]string{"shard": "none"})
	c := newConfig(a.url)
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
	s := startReplica(t, c, to).waitUntilReady(t)

	created := a.create("/clusters", "created", map[string]string{"shard": "a"})
	bare := a.create("/clusters", "bare", nil)
	want := map[string]any{
		"id": created.Id, "kind": "Cluster", "href": created.Href, "generation": 1.0,
		"shard": "a", "why": "message_decision", "origin": map[string]any{"region": "eu", "number": 3.0},
	}

	if diff := cmp.Diff(want, to.waitForEvents(created.Id, 1)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	timing.WaitUntil(t, "the error is counted", func() bool { return s.sumMetric(t, "expression_errors_total", "") > 0 })

	if len(to.listEvents(bare.Id)) != 0 || len(to.listEvents(existing.Id)) != 0 {
		t.Error("events of resources for which the decision is false")
	}

	if err := s.CheckReady(t.Context()); err != nil {
		t.Errorf("Ready() = %v", err)
	}

	if err := s.CheckLive(t.Context()); err != nil {
		t.Errorf("Live() = %v", err)
	}

	if text := s.log.String(); !strings.Contains(text, "[Qutoa]") {
		t.Error("no warning about a condition that no resource has")
	}
}

// The change feed does not contain reports that repeat the previous one. An expression that depends
// on the time of the last report is evaluated with the state that was read last, which may be too
// old. So Sentinel reads the resource again before it sends an event.
func TestRepeatedReportsAreNotDue(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	old, again := a.create("/clusters", "old", nil), a.create("/clusters", "again", nil)

	for _, one := range []openapi.Resource{old, again} {
		a.report(one.Id, 1, "True")
	}

	// Times have the precision of the database.
	time.Sleep(time.Millisecond)

	reported, begin := time.Now(), time.Now()
	stamp := func(at time.Time) string { return `timestamp("` + at.UTC().Format(time.RFC3339Nano) + `")` }

	c := newConfig(a.url)
	c.RelistInterval = 24 * time.Hour
	c.MessageDecision = &platform.Decision{
		Result: "now > " + stamp(begin.Add(time.Hour)) + ` && condition("Reconciled").last_updated_time < ` + stamp(reported),
	}

	at := clocktesting.NewFakeClock(begin)
	s := startReplicaAt(t, c, to, at).waitUntilReady(t)
	pages := s.sumMetric(t, "list_pages_total", "")

	a.report(again.Id, 1, "True")
	at.Step(time.Hour)
	timing.WaitUntil(t, "events of the resource without a repeated report are sent", func() bool {
		at.Step(c.PollInterval)

		return len(to.listEvents(old.Id)) > 2
	})

	if sent := to.listEvents(again.Id); len(sent) != 0 {
		t.Errorf("%d events of the resource with a repeated report", len(sent))
	}

	if s.sumMetric(t, "list_pages_total", "") == pages {
		t.Error("the resource was not read again")
	}
}

// TestRelist checks that the periodic list finds changes that the change feed missed.
func TestRelist(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	c := newConfig(a.url)
	c.RelistInterval, c.PageSize = time.Second, 2
	s := startReplica(t, c, to).waitUntilReady(t)

	s.intercept(func(r *http.Request) (*http.Response, error) {
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
		to.waitForEvents(id, 1)
	}

	a.do(http.MethodDelete, "/clusters/"+ids[2], nil, nil)
	a.do(http.MethodPost, "/clusters/"+ids[2]+"/force-delete", map[string]any{"reason": "a test"}, nil)
	timing.WaitUntil(t, "the removed resource is forgotten", func() bool { return s.sumMetric(t, "known_resources", "") == 4 })
}

func TestAnUnknownCollectionIsNotReady(t *testing.T) {
	t.Parallel()

	a, to := serve(t), newRecordingBroker(t)
	c := newConfig(a.url)
	c.ResourceType = "castles"
	s := startReplica(t, c, to)

	timing.WaitUntil(t, "the log names the unknown collection", func() bool { return strings.Contains(s.log.String(), "castles") })

	if err := s.CheckReady(t.Context()); err == nil {
		t.Error("ready with an unknown collection")
	}
}

// The tests of this file set the trace provider of the whole process, so they are not parallel.

func recordSpans(t *testing.T, sampler sdktrace.Sampler) *tracetest.InMemoryExporter {
	t.Helper()

	spans := tracetest.NewInMemoryExporter()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans), sdktrace.WithSampler(sampler)))
	t.Cleanup(func() { otel.SetTracerProvider(noop.NewTracerProvider()) })

	return spans
}

// listSendSpans returns the spans of Sentinel. The API of these tests runs in the same process.
func listSendSpans(spans *tracetest.InMemoryExporter) tracetest.SpanStubs {
	return slices.DeleteFunc(spans.GetSpans(), func(one tracetest.SpanStub) bool { return one.Name != "send event" })
}

// sendTwo makes Sentinel send two events, and returns their trace contexts.
func sendTwo(t *testing.T) (*replica, []string) {
	t.Helper()

	a, to := serve(t), newRecordingBroker(t)
	r := startReplica(t, newConfig(a.url), to).waitUntilReady(t)

	var parents []string

	for _, name := range []string{"one", "two"} {
		made := a.create("/clusters", name, nil)
		to.waitForEvents(made.Id, 1)

		parent, _ := to.listEvents(made.Id)[0].Extensions()[events.ExtensionTraceParent].(string)
		parents = append(parents, parent)
	}

	r.end()

	return r, parents
}

func TestEventTraces(t *testing.T) {
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
				spans = recordSpans(t, tc.sampler)
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
					t.Errorf("no log line has trace ID %s", parent[3:35])
				}
			}

			got := listSendSpans(spans)
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

// TestSpanOfARejectedEvent checks that the span of a rejected event has an error without
// the broker's text, which can contain its address.
func TestSpanOfARejectedEvent(t *testing.T) {
	spans := recordSpans(t, sdktrace.AlwaysSample())
	a, to := serve(t), newRecordingBroker(t)
	made := a.create("/clusters", "refused", nil)
	to.setRejected(made.Id, true)

	r := startReplica(t, newConfig(a.url), to).waitUntilReady(t)
	timing.WaitUntil(t, "the event is rejected", func() bool { return strings.Contains(r.log.String(), errRejected.Error()) })
	to.setRejected(made.Id, false)
	to.waitForEvents(made.Id, 1)
	r.end()

	got := listSendSpans(spans)
	if len(got) < 2 || got[0].Status.Code != codes.Error || got[0].Status.Description != "publish" || len(got[0].Events) != 0 ||
		got[len(got)-1].Status.Code != codes.Unset {
		t.Errorf("spans %+v", got)
	}
}
