// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

func TestKindWithoutAdapters(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	channel := a.create("/channels", "stable", nil)

	if len(channel.Status.Conditions) != 0 {
		t.Errorf("want no condition to reconcile: %+v", channel.Status)
	}

	if got := as[openapi.Resource](t, a.do("DELETE", "/channels/"+channel.Id, nil), 202); got.DeletedTime == nil || got.Generation != 2 {
		t.Errorf("%+v", got)
	}

	if !a.isGone(channel.Id) {
		t.Error("the resource exists, although no adapter has to finalize it")
	}

	a.create("/channels", "stable", nil)
}

// TestRestrict checks that a child that restricts, which is the default, prevents the deletion of its parent, and that
// nothing else of the tree changes.
func TestRestrict(t *testing.T) {
	t.Parallel()

	a := serve(t, func(o *server.Options) {
		for i := range o.Entities {
			if o.Entities[i].Kind == "Backup" {
				o.Entities[i].OnParentDelete = ""
			}
		}
	})
	cluster := a.create("/clusters", "home", nil)
	pool := a.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)
	backup := a.create("/clusters/"+cluster.Id+"/backups", "nightly", nil)

	what := requireProblem(t, a.do("DELETE", "/clusters/"+cluster.Id, nil), "HYPERFLEET-CNF-101")
	if what.Status != http.StatusConflict || !strings.Contains(what.Detail, "Backup nightly") || strings.Contains(what.Detail, "NodePool") {
		t.Errorf("status %d, detail %q", what.Status, what.Detail)
	}

	for _, one := range []openapi.Resource{cluster, pool, backup} {
		if got := a.get(one); got.DeletedTime != nil || got.Generation != 1 {
			t.Errorf("%s: %+v", one.Name, got)
		}
	}

	as[openapi.Resource](t, a.do("DELETE", "/backups/"+backup.Id, nil), 202)
	as[openapi.Resource](t, a.do("DELETE", "/clusters/"+cluster.Id, nil), 202)

	// The tree is being deleted.
	requireProblem(t, a.do("POST", "/clusters/"+cluster.Id+"/nodepools", `{"name":"late","spec":{}}`), "HYPERFLEET-CNF-003")
	requireProblem(t, a.do("PATCH", "/clusters/"+cluster.Id, `{"spec":{"a":1}}`), "HYPERFLEET-CNF-003")
	requireProblem(t, a.do("PATCH", "/nodepools/"+pool.Id, `{"spec":{"a":1}}`), "HYPERFLEET-CNF-003")
	requireProblem(t, a.do("POST", "/clusters", `{"name":"home","spec":{}}`), "HYPERFLEET-CNF-001")
}

// TestOrphans checks that children with the policy orphan stay as they are when their parent is deleted: without an owner,
// at the same generation, with everything below them. The deletion changes nothing if one of them could not stay.
func TestOrphans(t *testing.T) {
	t.Parallel()

	a := serve(t, func(o *server.Options) {
		for i := range o.Entities {
			if o.Entities[i].Kind == "Backup" {
				o.Entities[i].OnParentDelete = "orphan"
			}
		}

		o.Entities = append(o.Entities, platform.Entity{Kind: "Copy", Plural: "copies", ParentKind: "Backup"})
	})

	remove := func(cluster openapi.Resource) {
		t.Helper()
		as[openapi.Resource](t, a.do("DELETE", "/clusters/"+cluster.Id, nil), 202)

		for _, adapter := range []string{"dns", "namespace"} {
			a.report(cluster.Id, adapter, 2, "True", "Finalized")
		}

		if !a.isGone(cluster.Id) {
			t.Errorf("cluster %s exists", cluster.Name)
		}
	}

	home := a.create("/clusters", "home", nil)
	backup := a.create("/clusters/"+home.Id+"/backups", "nightly", nil)
	copied := a.create("/backups/"+backup.Id+"/copies", "offsite", nil)

	cursor := as[openapi.ChangeList](t, a.do("GET", "/changes", nil), 200).Next

	remove(home)

	// Adapters learn that the orphan has changed, and not that it is to be deleted.
	for _, one := range as[openapi.ChangeList](t, a.do("GET", "/changes?after="+cursor, nil), 200).Items {
		if one.Kind != "Cluster" && one.Kind+" "+one.Operation != "Backup updated" {
			t.Errorf("the deletion of the parent was also the change %q of a %s", one.Operation, one.Kind)
		}
	}

	got := as[openapi.Resource](t, a.do("GET", "/backups/"+backup.Id, nil), 200)
	if got.OwnerReferences != nil || got.DeletedTime != nil || got.Generation != 1 || got.Href != "/api/hyperfleet/v1/backups/"+backup.Id {
		t.Errorf("the orphan is %+v", got)
	}

	if got := a.get(copied); got.DeletedTime != nil || got.OwnerReferences.Id != backup.Id {
		t.Errorf("the child of the orphan is %+v", got)
	}

	if list := as[openapi.ResourceList](t, a.do("GET", "/backups?search=owner_id%20is%20null", nil), 200); list.Total != 1 {
		t.Errorf("%d resources without an owner, want 1", list.Total)
	}

	// Another orphan with the same name prevents the deletion of its parent.
	away := a.create("/clusters", "away", nil)
	second := a.create("/clusters/"+away.Id+"/backups", "nightly", nil)

	if what := requireProblem(t, a.do("DELETE", "/clusters/"+away.Id, nil), "HYPERFLEET-CNF-101"); !strings.Contains(what.Detail, "Backup nightly") {
		t.Errorf("detail %q", what.Detail)
	}

	if got := a.get(second); got.OwnerReferences == nil || a.get(away).DeletedTime != nil {
		t.Errorf("the deletion has changed something: %+v", got)
	}

	as[openapi.Resource](t, a.do("DELETE", "/copies/"+copied.Id, nil), 202)
	as[openapi.Resource](t, a.do("DELETE", "/backups/"+backup.Id, nil), 202)
	remove(away)
}

// TestRequiredReferences checks that required references prevent the deletion of their target.
func TestRequiredReferences(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	one, two := a.create("/channels", "one", nil), a.create("/channels", "two", nil)
	version := as[openapi.Resource](t, a.do("POST", "/versions", refs(one.Id)), 201)

	if diff := cmp.Diff(map[string][]openapi.ResourceReference{"channel": {{
		Id: one.Id, Kind: "Channel", Href: "/api/hyperfleet/v1/channels/" + one.Id,
	}}}, a.get(version).References); diff != "" {
		t.Error(diff)
	}

	what := requireProblem(t, a.do("DELETE", "/channels/"+one.Id, nil), "HYPERFLEET-CNF-101")
	if !strings.Contains(what.Detail, version.Id) {
		t.Errorf("detail %q", what.Detail)
	}

	// A change of references increases the generation, and the old target can be deleted.
	changed := as[openapi.Resource](t, a.do("PATCH", "/versions/"+version.Id,
		map[string]any{"references": refs(two.Id)["references"]}), 200)
	if changed.Generation != 2 || changed.References["channel"][0].Id != two.Id {
		t.Errorf("%+v", changed)
	}

	as[openapi.Resource](t, a.do("DELETE", "/channels/"+one.Id, nil), 202)
	requireProblem(t, a.do("PATCH", "/versions/"+version.Id, `{"references":{}}`), "HYPERFLEET-VAL-001")

	// The deletion clears the references of the referrer itself.
	if got := as[openapi.Resource](t, a.do("DELETE", "/versions/"+version.Id, nil), 202); got.References != nil {
		t.Errorf("%+v", got.References)
	}

	as[openapi.Resource](t, a.do("DELETE", "/channels/"+two.Id, nil), 202)
}

// TestWeakReferences checks that weak references stay after their target was deleted, and that
// their resources are not reconciled until the references are changed.
func TestWeakReferences(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	channel, hint, cluster := a.create("/channels", "stable", nil), a.create("/channels", "hint", nil), a.create("/clusters", "home", nil)
	link := func(ids ...string) map[string]any {
		out := map[string]any{"channel": []any{map[string]any{"id": channel.Id}}}
		for i, refType := range []string{"hint", "used_by"}[:len(ids)] {
			out[refType] = []any{map[string]any{"id": ids[i]}}
		}

		return out
	}
	version := a.create("/versions", "v1", map[string]any{"references": link(hint.Id, cluster.Id)})
	a.report(version.Id, "images", 1, "True")

	if got := findCondition(a.get(version), "Reconciled"); got.Status != "True" {
		t.Fatalf("%+v", got)
	}

	// One target is removed immediately. The other one is being deleted.
	for _, tc := range []struct{ path, id string }{{"/channels/", hint.Id}, {"/clusters/", cluster.Id}} {
		as[openapi.Resource](t, a.do("DELETE", tc.path+tc.id, nil), 202)

		got := a.get(version)
		if now := findCondition(got, "Reconciled"); now.Status != "False" || now.Reason != "ReferenceMissing" || !strings.Contains(now.Message, tc.id) {
			t.Errorf("%+v", now)
		}

		if got.Generation != 1 || got.References["hint"][0].Id != hint.Id {
			t.Errorf("the referrer was changed: %+v", got)
		}
	}

	// Neither a report nor another change fixes it.
	a.report(version.Id, "images", 1, "True")
	as[openapi.Resource](t, a.do("PATCH", "/versions/"+version.Id, `{"labels":{"a":"b"}}`), 200)
	a.report(version.Id, "images", 2, "True")

	if got := findCondition(a.get(version), "Reconciled"); got.Reason != "ReferenceMissing" {
		t.Errorf("%+v", got)
	}

	// A new reference to a target that is being deleted, or was removed, is rejected.
	requireProblem(t, a.do("POST", "/versions", map[string]any{"name": "v2", "spec": map[string]any{}, "references": link(channel.Id, cluster.Id)}), "HYPERFLEET-CNF-003")
	requireProblem(t, a.do("POST", "/versions", map[string]any{"name": "v2", "spec": map[string]any{}, "references": link(hint.Id)}), "HYPERFLEET-VAL-001")

	as[openapi.Resource](t, a.do("PATCH", "/versions/"+version.Id, map[string]any{"references": link()}), 200)
	a.report(version.Id, "images", 3, "True")

	if got := findCondition(a.get(version), "Reconciled"); got.Status != "True" {
		t.Errorf("%+v", got)
	}
}

// TestForceDelete removes a tree without waiting for its adapters, and records the caller.
func TestForceDelete(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)
	pool := a.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)
	channel := a.create("/channels", "stable", nil)
	version := a.create("/versions", "v1", map[string]any{"references": map[string]any{
		"channel": []any{map[string]any{"id": channel.Id}}, "used_by": []any{map[string]any{"id": cluster.Id}},
	}})
	at := "/clusters/" + cluster.Id

	requireProblem(t, a.do("POST", at+"/force-delete", `{"reason":"stuck"}`), "HYPERFLEET-CNF-003")
	as[openapi.Resource](t, a.do("DELETE", at, nil), 202)
	as[struct{}](t, a.do("POST", at+"/force-delete", `{"reason":"the DNS is gone for good"}`), 204)

	if !a.isGone(cluster.Id) || !a.isGone(pool.Id) {
		t.Error("a resource of the tree still exists")
	}

	requireProblem(t, a.do("POST", at+"/force-delete", `{"reason":"again"}`), "HYPERFLEET-NTF-001")

	if got := findCondition(a.get(version), "Reconciled"); got.Reason != "ReferenceMissing" {
		t.Errorf("%+v", got)
	}

	entries := a.audit(cluster.Id)
	if len(entries) != 1 {
		t.Fatalf("%+v", entries)
	}

	want := store.AuditEntry{
		At: startTime(), Actor: "anonymous", Action: "force-delete", Reason: "the DNS is gone for good", ResourceID: cluster.Id, Kind: "Cluster",
		Name: "home", Removed: []string{cluster.Id, pool.Id},
	}
	if diff := cmp.Diff(want, entries[0]); diff != "" {
		t.Error(diff)
	}

	if !strings.Contains(a.log.String(), `"reason":"the DNS is gone for good"`) {
		t.Error("the log does not contain the forced deletion")
	}
}

// TestForceDeleteOfAChild checks that a finalized parent is removed after its last child was
// deleted by force.
func TestForceDeleteOfAChild(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "home", nil)
	pool := a.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)

	as[openapi.Resource](t, a.do("DELETE", "/clusters/"+cluster.Id, nil), 202)
	a.report(cluster.Id, "dns", 2, "True", "Finalized")
	a.report(cluster.Id, "namespace", 2, "True", "Finalized")
	as[struct{}](t, a.do("POST", "/clusters/"+cluster.Id+"/nodepools/"+pool.Id+"/force-delete", `{"reason":"r"}`), 204)

	if !a.isGone(pool.Id) || !a.isGone(cluster.Id) {
		t.Error("the parent still exists, although it only waited for the child")
	}
}

// TestChanges checks that the feed has every visible change once and in order.
func TestChanges(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cursor := as[openapi.ChangeList](t, a.do("GET", "/changes", nil), 200)

	if len(cursor.Items) != 0 || cursor.Next == "" {
		t.Fatalf("%+v", cursor)
	}

	cluster := a.create("/clusters", "home", nil)
	pool := a.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)
	as[openapi.Resource](t, a.do("PATCH", "/clusters/"+cluster.Id, `{"spec":{"a":1}}`), 200)
	as[openapi.Resource](t, a.do("PATCH", "/clusters/"+cluster.Id, `{"spec":{"a":1}}`), 200)
	a.report(cluster.Id, "dns", 2, "True")
	// A repeated report is not a change.
	a.clock.Step(time.Minute)
	a.report(cluster.Id, "dns", 2, "True")
	as[openapi.Resource](t, a.do("DELETE", "/clusters/"+cluster.Id, nil), 202)
	a.report(cluster.Id, "dns", 3, "True", "Finalized")
	a.report(cluster.Id, "namespace", 3, "True", "Finalized")
	a.report(pool.Id, "machines", 2, "True", "Finalized")

	var changes []string

	for next := cursor.Next; len(changes) < 20; {
		page := as[openapi.ChangeList](t, a.do("GET", "/changes?limit=3&after="+next, nil), 200)
		if len(page.Items) == 0 {
			break
		}

		for _, one := range page.Items {
			changes = append(changes, one.Kind+" "+one.Operation)

			if one.Href != cluster.Href && one.Href != pool.Href {
				t.Errorf("href %s", one.Href)
			}
		}

		next = page.Next
	}

	want := []string{
		"Cluster created", "NodePool created", "Cluster updated", "Cluster status", "NodePool deleting", "Cluster deleting",
		"Cluster status", "Cluster status", "NodePool removed", "Cluster removed",
	}
	if diff := cmp.Diff(want, changes); diff != "" {
		t.Error(diff)
	}

	pools := as[openapi.ChangeList](t, a.do("GET", "/changes?kind=NodePool&after="+cursor.Next, nil), 200)
	if len(pools.Items) != 3 || slices.ContainsFunc(pools.Items, func(c openapi.Change) bool { return c.Kind != "NodePool" }) {
		t.Errorf("%+v", pools.Items)
	}
}

// TestTreeOfThree checks that a deletion cascades to the children of children, and that each resource waits for those
// below it. A refused deletion changes nothing, although the request compares ETags last.
func TestTreeOfThree(t *testing.T) {
	t.Parallel()

	a := serve(t, func(o *server.Options) {
		o.Entities = append(o.Entities, platform.Entity{
			Kind: "Machine", Plural: "machines", ParentKind: "NodePool", OnParentDelete: "cascade", RequiredAdapters: []string{"machines"},
		})
	})
	cluster := a.create("/clusters", "home", nil)
	pool := a.create("/clusters/"+cluster.Id+"/nodepools", "workers", nil)
	machine := a.create("/nodepools/"+pool.Id+"/machines", "first", nil)
	cursor := as[openapi.ChangeList](t, a.do("GET", "/changes", nil), 200)

	requireProblem(t, a.ifMatch(pool.Etag).do("DELETE", "/clusters/"+cluster.Id, nil), "HYPERFLEET-VAL-106")

	for _, one := range []openapi.Resource{cluster, pool, machine} {
		if got := a.get(one); got.DeletedTime != nil || got.Generation != 1 {
			t.Errorf("after a refused deletion, %s %s: %+v", one.Kind, one.Name, got)
		}
	}

	as[openapi.Resource](t, a.do("DELETE", "/clusters/"+cluster.Id, nil), 202)

	for _, one := range []openapi.Resource{cluster, pool, machine} {
		if got := a.get(one); got.DeletedTime == nil || got.Generation != 2 {
			t.Errorf("%s %s: %+v", one.Kind, one.Name, got)
		}
	}

	var changes []string
	for _, one := range as[openapi.ChangeList](t, a.do("GET", "/changes?after="+cursor.Next, nil), 200).Items {
		changes = append(changes, one.Kind+" "+one.Operation)
	}

	if diff := cmp.Diff([]string{"Machine deleting", "NodePool deleting", "Cluster deleting"}, changes); diff != "" {
		t.Error(diff)
	}

	a.report(pool.Id, "machines", 2, "True", "Finalized")

	if a.isGone(pool.Id) {
		t.Error("the node pool has not waited for its machine")
	}

	a.report(machine.Id, "machines", 2, "True", "Finalized")

	if !a.isGone(machine.Id) || !a.isGone(pool.Id) || a.isGone(cluster.Id) {
		t.Error("want that the machine and its node pool are gone, and that the cluster waits for its adapters")
	}
}

// TestLargeTree deletes a cluster with 200 node pools in one transaction.
func TestLargeTree(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	cluster := a.create("/clusters", "large", nil)

	for i := range 200 {
		a.create("/clusters/"+cluster.Id+"/nodepools", fmt.Sprintf("p%d", i), nil)
	}

	gone := a.do("DELETE", "/clusters/"+cluster.Id, nil)
	for tries := 0; gone.status == 503 && tries < 5; tries++ {
		// If the machine is busy, the server times out and responds that the client has to retry.
		gone = a.do("DELETE", "/clusters/"+cluster.Id, nil)
	}

	as[openapi.Resource](t, gone, 202)

	if got := as[openapi.ResourceList](t, a.do("GET", "/nodepools?search=deleted_time%3E%272020-01-01T00:00:00Z%27", nil), 200); got.Total != 200 {
		t.Errorf("%d resources are being deleted", got.Total)
	}
}
