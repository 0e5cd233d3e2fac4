// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
)

// randomCaller makes random requests for one cluster and the resources around it.
type randomCaller struct {
	*api

	dice    *rand.Rand
	cluster string
	channel string
}

// makeRequest makes one request. Any response other than an internal error is valid, because requests may
// be rejected for a reason.
func (p *randomCaller) makeRequest() error {
	pools, err := p.list("/clusters/" + p.cluster + "/nodepools")
	if err != nil {
		return err
	}

	target := openapi.Resource{Id: p.cluster, Kind: "Cluster", Generation: 1}
	if got, err := p.tryRequest(p.t.Context(), "GET", "/clusters/"+p.cluster, nil); err == nil && got.status == 200 {
		target = as[openapi.Resource](p.t, got, 200)
	}

	if len(pools) > 0 && p.dice.IntN(2) > 0 {
		target = pools[p.dice.IntN(len(pools))]
	}

	method, path, body := p.chooseRequest(target)

	got, err := p.tryRequest(p.t.Context(), method, path, body)
	if err != nil {
		return err
	}

	if got.status >= 500 {
		return fmt.Errorf("%s %s: %d %s", method, path, got.status, got.body)
	}

	return nil
}

func (p *randomCaller) chooseRequest(target openapi.Resource) (method, path string, body any) {
	at := "/resources/" + target.Id
	name := fmt.Sprintf("p%d", p.dice.IntN(6))

	switch dice := p.dice.IntN(20); dice {
	case 0, 1:
		return "POST", "/clusters/" + p.cluster + "/nodepools", map[string]any{"name": name, "spec": map[string]any{}}
	case 2:
		return "PATCH", at, map[string]any{"spec": map[string]any{"n": p.dice.IntN(3)}}
	case 3, 4:
		return "DELETE", at, nil
	case 6:
		return "POST", at + "/force-delete", map[string]any{"reason": "r"}
	case 5:
		return "POST", "/versions", map[string]any{"name": name + p.cluster, "spec": map[string]any{}, "references": map[string]any{
			"channel": []any{map[string]any{"id": p.channel}}, "used_by": []any{map[string]any{"id": p.cluster}},
		}}
	default:
		// Most reports are those of a working adapter, so that deletions are completed. Some are
		// not.
		adapters := []string{"machines", "stranger"}
		if target.Kind == "Cluster" {
			adapters = []string{"dns", "namespace"}
		}

		adapter, generation, status := adapters[p.dice.IntN(2)], target.Generation, "True"
		if dice > 16 {
			generation, status = 1+p.dice.Int32N(4), []string{"False", "Unknown"}[p.dice.IntN(2)]
		}

		if target.DeletedTime == nil || dice == 16 {
			return "PUT", at + "/statuses", p.statusReport(adapter, generation, status)
		}

		return "PUT", at + "/statuses", p.statusReport(adapter, generation, status, "Finalized")
	}
}

func (a *api) list(path string) ([]openapi.Resource, error) {
	got, err := a.tryRequest(a.t.Context(), "GET", path+"?size=100", nil)
	if err != nil || got.status == 404 {
		return nil, err
	}

	return as[openapi.ResourceList](a.t, got, 200).Items, nil
}

// findInconsistencies returns what is wrong with the current resources. Each resource needs the conditions
// that follow from its reports, and no resource may exist that should have been removed.
func (a *api) findInconsistencies(all []openapi.Resource) []string {
	var wrong []string

	byID := map[string]openapi.Resource{}
	below := map[string]int{}

	for _, one := range all {
		byID[one.Id] = one

		if one.OwnerReferences != nil {
			below[one.OwnerReferences.Id]++
		}
	}

	required := map[string][]string{}
	for _, kind := range newEntities() {
		required[kind.Kind] = kind.RequiredAdapters
	}

	for _, one := range all {
		in := conditions.Input{
			Generation: one.Generation, UpdatedTime: one.UpdatedTime, Deleting: one.DeletedTime != nil, Required: required[one.Kind],
			Children: below[one.Id], Previous: one.Status.Conditions,
			Statuses: as[openapi.StatusList](a.t, a.do("GET", "/resources/"+one.Id+"/statuses", nil), 200).Items,
		}

		for refType, targets := range one.References {
			for _, ref := range targets {
				if target, there := byID[ref.Id]; !there || target.DeletedTime != nil {
					in.Missing = append(in.Missing, conditions.MissingReference{Type: refType, ID: ref.Id})
				}
			}
		}

		if conditions.IsFinished(in) {
			wrong = append(wrong, fmt.Sprintf("%s %s should have been removed", one.Kind, one.Name))
		}

		want, _ := conditions.Condition(conditions.Aggregate(in), "Reconciled")
		if got := findCondition(one, "Reconciled"); got.Status != want.Status || got.Reason != want.Reason || got.Message != want.Message ||
			got.ObservedGeneration != want.ObservedGeneration {
			wrong = append(wrong, fmt.Sprintf("%s %s: %s", one.Kind, one.Name, cmp.Diff(want, got)))
		}

		if owner := one.OwnerReferences; owner != nil {
			if parent, there := byID[owner.Id]; !there || parent.DeletedTime != nil && one.DeletedTime == nil {
				wrong = append(wrong, fmt.Sprintf("%s %s exists without its parent", one.Kind, one.Name))
			}
		}
	}

	return wrong
}

// replayChanges replays the change feed and compares the result with the current resources.
func (a *api) replayChanges(cursor string) (map[string]int32, []string) {
	there := map[string]int32{}

	var wrong []string

	for {
		page := as[openapi.ChangeList](a.t, a.do("GET", "/changes?limit=50&after="+cursor, nil), 200)
		if len(page.Items) == 0 {
			return there, wrong
		}

		for _, one := range page.Items {
			before, known := there[one.Id]
			if known == (one.Operation == "created") || one.Generation < before {
				wrong = append(wrong, fmt.Sprintf("%s %s at %d after %d", one.Id, one.Operation, one.Generation, before))
			}

			there[one.Id] = one.Generation
			if one.Operation == "removed" {
				delete(there, one.Id)
			}
		}

		cursor = page.Next
	}
}

// TestPropertyWhateverHappens has several callers that make random requests for a tree at the same
// time. Afterwards each resource has the conditions that follow from its reports, no resource was
// removed too late, and a client of the change feed knows exactly which resources exist. After the
// tree was deleted and its adapters have finalized it in any order, nothing remains.
func TestPropertyWhateverHappens(t *testing.T) {
	t.Parallel()

	a := serve(t, nil)
	channel := a.create("/channels", "stable", nil)

	property.Check(t, "conditions, owners and changes agree", property.Options{Brief: 10}, prop.ForAllNoShrink(func(seed uint64) string {
		cursor := as[openapi.ChangeList](t, a.do("GET", "/changes", nil), 200).Next
		cluster := a.create("/clusters", fmt.Sprintf("home-%x", seed), nil)

		var (
			group  sync.WaitGroup
			failed sync.Map
		)

		for worker := range uint64(3) {
			group.Go(func() {
				p := &randomCaller{api: a, dice: rand.New(rand.NewPCG(seed, worker)), cluster: cluster.Id, channel: channel.Id}
				for range 7 {
					if err := p.makeRequest(); err != nil {
						failed.Store(err.Error(), true)
					}
				}
			})
		}

		group.Wait()

		all, err := a.list("/resources")
		if err != nil {
			return err.Error()
		}

		replayed, wrong := a.replayChanges(cursor)
		wrong = append(wrong, a.findInconsistencies(all)...)

		failed.Range(func(key, _ any) bool {
			wrong = append(wrong, fmt.Sprint(key))

			return true
		})

		now := map[string]int32{}

		for _, one := range all {
			if one.Id != channel.Id {
				now[one.Id] = one.Generation
			}
		}

		if diff := cmp.Diff(now, replayed); diff != "" {
			wrong = append(wrong, "the changes do not match the resources: "+diff)
		}

		wrong = append(wrong, a.deleteTree(cluster.Id, rand.New(rand.NewPCG(seed, 9)))...)

		return strings.Join(wrong, "\n")
	}, gen.UInt64()))
}

// deleteTree deletes a tree and lets its adapters finalize it in any order. It returns the remaining
// resources, of which there must be none.
func (a *api) deleteTree(cluster string, dice *rand.Rand) []string {
	a.do("DELETE", "/clusters/"+cluster, nil)

	tree, err := a.list("/clusters/" + cluster + "/nodepools")
	if err != nil {
		return []string{err.Error()}
	}

	var finals []func()

	report := func(id, adapter string, generation int32) {
		finals = append(finals, func() {
			a.do("PUT", "/resources/"+id+"/statuses", a.statusReport(adapter, generation, "True", "Finalized"))
		})
	}

	for _, pool := range tree {
		report(pool.Id, "machines", pool.Generation)
	}

	if got := a.do("GET", "/clusters/"+cluster, nil); got.status == 200 {
		generation := as[openapi.Resource](a.t, got, 200).Generation
		report(cluster, "dns", generation)
		report(cluster, "namespace", generation)
	}

	dice.Shuffle(len(finals), func(i, j int) { finals[i], finals[j] = finals[j], finals[i] })

	for _, final := range finals {
		final()
	}

	left, err := a.list("/resources")
	if err != nil {
		return []string{err.Error()}
	}

	var wrong []string

	for _, one := range left {
		switch one.Kind {
		case "Channel":
		case "Version":
			a.do("DELETE", "/resources/"+one.Id, nil)
			a.do("POST", "/resources/"+one.Id+"/force-delete", `{"reason":"end of the run"}`)
		default:
			wrong = append(wrong, fmt.Sprintf("%s %s still exists: %+v", one.Kind, one.Name, findCondition(one, "Reconciled")))
		}
	}

	return wrong
}
