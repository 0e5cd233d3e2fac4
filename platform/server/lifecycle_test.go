// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// TestReconciled follows a resource from its creation to its removal.
func TestReconciled(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)
	id := cluster.Id

	check := func(status, reason string, updated time.Duration, more ...string) {
		t.Helper()

		now := a.get(cluster)
		got := findCondition(now, "Reconciled")

		if got.Status != status || got.Reason != reason || !got.LastUpdatedTime.Equal(startTime().Add(updated)) {
			t.Errorf("Reconciled %+v, want %s %s at %s", got, status, reason, updated)
		}

		for _, one := range more {
			name, want, _ := strings.Cut(one, "=")
			if got := findCondition(now, name); got.Status != want {
				t.Errorf("%s: %+v", one, got)
			}
		}
	}

	check("False", "ReconciledMissingAdapters", 0)
	a.clock.Step(time.Second)
	a.report(id, "dns", 1, "True")
	check("False", "ReconciledMissingAdapters", time.Second, "DnsSuccessful=True", "NamespaceSuccessful=", "LastKnownReconciled=False")
	a.clock.Step(2 * time.Second)
	a.report(id, "namespace", 1, "True")
	check("True", "ReconciledAll", time.Second, "LastKnownReconciled=True")

	if at := findCondition(a.get(cluster), "Reconciled").LastTransitionTime; !at.Equal(startTime().Add(3 * time.Second)) {
		t.Errorf("the last transition was at %s", at)
	}

	a.clock.Step(time.Second)
	a.report(id, "dns", 1, "True")
	check("True", "ReconciledAll", 3*time.Second)
	a.report(id, "stranger", 1, "False")
	check("True", "ReconciledAll", 3*time.Second, "StrangerSuccessful=")
	a.clock.Step(time.Second)

	if got := as[openapi.Resource](t, a.do("PATCH", "/clusters/"+id, `{"spec":{},"labels":{}}`), 200); got.Generation != 1 {
		t.Errorf("an empty change gives generation %d", got.Generation)
	}

	as[openapi.Resource](t, a.do("PATCH", "/clusters/"+id, `{"labels":{"a":"b"}}`), 200)
	check("False", "ReconciledMissingAdapters", 5*time.Second, "LastKnownReconciled=True")
	deleted := as[openapi.Resource](t, a.do("DELETE", "/clusters/"+id, nil), 202)

	if again := as[openapi.Resource](t, a.do("DELETE", "/clusters/"+id, nil), 202); !cmp.Equal(again, deleted) {
		t.Errorf("a second DELETE: %s", cmp.Diff(deleted, again))
	}

	a.report(id, "dns", 3, "True", "Finalized")
	check("False", "ReconciledMissingAdapters", 5*time.Second)
	a.report(id, "namespace", 3, "False", "Finalized")

	if !a.isGone(id) {
		t.Error("the resource exists, although all adapters have finalized it")
	}

	requireProblem(t, a.do("PUT", "/resources/"+id+"/statuses", a.statusReport("dns", 3, "True")), "HYPERFLEET-NTF-001")
}

// TestDiscardedReports checks that discarded reports get 204 and change nothing. The rules for
// discarding are tested in platform/conditions.
func TestDiscardedReports(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)
	at := "/clusters/" + cluster.Id + "/statuses"

	// A first report with Unknown is stored, but does not count.
	as[openapi.AdapterStatus](t, a.do("PUT", at, a.statusReport("dns", 1, "Unknown")), 201)

	if got := findCondition(a.get(cluster), "Reconciled"); got.ObservedGeneration != 0 || got.Reason != "ReconciledMissingAdapters" {
		t.Errorf("after a first report of Unknown: %+v", got)
	}

	a.report(cluster.Id, "dns", 1, "True")
	before := a.get(cluster)
	a.clock.Step(time.Minute)

	for name, report := range map[string]openapi.StatusReport{
		"a future generation, after an earlier report":                a.statusReport("dns", 3, "False"),
		"Unknown with a future generation, without an earlier report": a.statusReport("namespace", 4, "Unknown"),
	} {
		if got := a.do("PUT", at, report); got.status != 204 || len(got.body) > 0 {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}

	if after := a.get(cluster); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("before %v, after %v", before, after)
	}
}

func TestInvalidReports(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)

	for name, tc := range map[string]struct {
		change func(*openapi.StatusReport)
		field  string
	}{
		"no Health":           {func(r *openapi.StatusReport) { r.Conditions = r.Conditions[:2] }, "conditions"},
		"a duplicate type":    {func(r *openapi.StatusReport) { r.Conditions = append(r.Conditions, r.Conditions[0]) }, "conditions[3].type"},
		"an invalid status":   {func(r *openapi.StatusReport) { r.Conditions[1].Status = "true" }, "conditions[1].status"},
		"in the future":       {func(r *openapi.StatusReport) { r.ObservedTime = startTime().Add(5*time.Minute + time.Second) }, "observed_time"},
		"too old":             {func(r *openapi.StatusReport) { r.ObservedTime = startTime().Add(-30*time.Minute - time.Second) }, "observed_time"},
		"no time":             {func(r *openapi.StatusReport) { r.ObservedTime = time.Time{} }, "observed_time"},
		"no generation":       {func(r *openapi.StatusReport) { r.ObservedGeneration = 0 }, "observed_generation"},
		"name of adapter":     {func(r *openapi.StatusReport) { r.Adapter = "A b" }, "adapter"},
		"length of a type":    {func(r *openapi.StatusReport) { r.Conditions[0].Type = longText(101) }, "conditions[0].type"},
		"length of a text":    {func(r *openapi.StatusReport) { r.Conditions[0].Reason = longText(1025) }, "conditions[0]"},
		"an empty type":       {func(r *openapi.StatusReport) { r.Conditions[0].Type = "" }, "conditions[0].type"},
		"too many conditions": {func(r *openapi.StatusReport) { r.Conditions = make([]openapi.AdapterCondition, 101) }, "conditions"},
	} {
		report := a.statusReport("dns", 1, "True")
		tc.change(&report)

		what := requireProblem(t, a.do("PUT", "/clusters/"+cluster.Id+"/statuses", report), "HYPERFLEET-VAL-001")
		if what.Errors == nil || !hasField(what, tc.field) {
			t.Errorf("%s: %+v", name, what.Errors)
		}
	}

	for _, at := range []time.Duration{5 * time.Minute, -30 * time.Minute} {
		report := a.statusReport(fmt.Sprintf("at%d", int(at.Minutes())+30), 1, "True")
		report.ObservedTime = startTime().Add(at)
		as[openapi.AdapterStatus](t, a.do("PUT", "/clusters/"+cluster.Id+"/statuses", report), 201)
	}
}

// TestSlowChildren is a regression test for counting only active children. While a child is being
// deleted, its finalized parent is neither Reconciled nor removed. The parent is removed with its
// last child, without another report.
func TestSlowChildren(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)
	pools := []openapi.Resource{
		a.create("/clusters/"+cluster.Id+"/nodepools", "one", nil), a.create("/clusters/"+cluster.Id+"/nodepools", "two", nil),
	}

	as[openapi.Resource](t, a.do("DELETE", "/clusters/"+cluster.Id, nil), 202)

	for _, pool := range pools {
		if got := a.get(pool); got.DeletedTime == nil || got.Generation != 2 {
			t.Errorf("the deletion did not cascade: %+v", got)
		}
	}

	a.report(cluster.Id, "dns", 2, "True", "Finalized")
	a.report(cluster.Id, "namespace", 2, "True", "Finalized")

	if got := findCondition(a.get(cluster), "Reconciled"); got.Status != "False" || got.Reason != "ReconciledWaitingForChildren" {
		t.Errorf("with two children: %+v", got)
	}

	a.report(pools[0].Id, "machines", 2, "True", "Finalized")

	if got := findCondition(a.get(cluster), "Reconciled"); got.Status != "False" || got.Reason != "ReconciledWaitingForChildren" {
		t.Errorf("with one child: %+v", got)
	}

	a.report(pools[1].Id, "machines", 2, "True", "Finalized")

	if !a.isGone(pools[1].Id) || !a.isGone(cluster.Id) {
		t.Error("the parent was not removed with its last child")
	}
}

// TestConcurrentFinalizations deletes a tree whose adapters all report at the same time, each of them twice.
// No report is lost to a deadlock, and the whole tree is removed.
func TestConcurrentFinalizations(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)

	var pools []openapi.Resource
	for i := range 20 {
		pools = append(pools, a.create("/clusters/"+cluster.Id+"/nodepools", fmt.Sprintf("p%d", i), nil))
	}

	as[openapi.Resource](t, a.do("DELETE", "/clusters/"+cluster.Id, nil), 202)

	var group sync.WaitGroup

	report := func(id, adapter string) {
		for range 2 {
			group.Go(func() {
				got, err := a.tryRequest(t.Context(), "PUT", "/resources/"+id+"/statuses", a.statusReport(adapter, 2, "True", "Finalized"))
				if err != nil || got.status != 201 && got.status != 404 {
					t.Errorf("%s: %d %s %v", adapter, got.status, got.body, err)
				}
			})
		}
	}

	report(cluster.Id, "dns")

	for _, pool := range pools {
		report(pool.Id, "machines")
	}

	report(cluster.Id, "namespace")
	group.Wait()

	if got := as[openapi.ResourceList](t, a.do("GET", "/resources", nil), 200); got.Total != 0 {
		t.Errorf("%d resources still exist: %+v", got.Total, got.Items)
	}
}

// TestMappedConditions checks conditions that come from rules. If a rule fails, the report is not
// stored.
func TestMappedConditions(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	channel := a.create("/channels", "stable", nil)
	version := as[openapi.Resource](t, a.do("POST", "/versions", refs(channel.Id)), 201)

	put := func(quota any) reply {
		report := a.statusReport("images", 1, "True")
		report.Data = &openapi.Object{"quota": quota}

		return a.do("PUT", "/versions/"+version.Id+"/statuses", report)
	}

	as[openapi.AdapterStatus](t, put(9), 201)

	if got := findCondition(a.get(version), "Quota"); got.Status != "False" || got.Message != "abc has 9" || got.ObservedGeneration != 1 || got.Reason != "Quota" {
		t.Errorf("%+v", got)
	}

	before := a.get(version)
	what := requireProblem(t, put("a secret"), "HYPERFLEET-INT-101")

	if strings.Contains(what.Detail, "secret") || !strings.Contains(what.Detail, "Quota") {
		t.Errorf("detail %q", what.Detail)
	}

	if after := a.get(version); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Error("a report whose rule failed changed the conditions")
	}

	stored := as[openapi.StatusList](t, a.do("GET", "/versions/"+version.Id+"/statuses", nil), 200)
	if (*stored.Items[0].Data)["quota"] != int64(9) {
		t.Errorf("a report whose rule failed was stored: %v", *stored.Items[0].Data)
	}
}
