// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
)

// random makes an input of up to four adapters, with reports of any sort.
func random(seed uint64) (conditions.Input, *rand.Rand) {
	dice := rand.New(rand.NewPCG(seed, 1))
	names := []string{"a", "b", "c", "d", "stranger"}
	in := conditions.Input{
		Generation: 1 + dice.Int32N(3), UpdatedTime: at(0), Deleting: dice.IntN(3) == 0, Required: names[:dice.IntN(5)],
		Children: dice.IntN(2) * dice.IntN(3),
	}

	for _, name := range names {
		if dice.IntN(5) == 0 {
			continue
		}

		status := func() string { return []string{"True", "True", "True", "False", "Unknown"}[dice.IntN(5)] }
		in.Statuses = append(in.Statuses, openapi.AdapterStatus{
			Adapter: name, ObservedGeneration: 1 + dice.Int32N(in.Generation), LastReportTime: at(dice.IntN(100)),
			Conditions: []openapi.AdapterCondition{
				{Type: "Available", Status: status()}, {Type: "Finalized", Status: status()},
			},
		})
	}

	return in, dice
}

// often is tried what costs next to nothing.
const often = 500

// TestOrder: conditions do not depend on the order in which independent reports came.
func TestOrder(t *testing.T) {
	t.Parallel()

	property.Check(t, "the order of reports does not matter", property.Options{Runs: often}, prop.ForAll(func(seed uint64) bool {
		in, dice := random(seed)
		before := conditions.Aggregate(in)

		dice.Shuffle(len(in.Statuses), func(i, j int) {
			in.Statuses[i], in.Statuses[j] = in.Statuses[j], in.Statuses[i]
		})

		return cmp.Equal(before, conditions.Aggregate(in))
	}, gen.UInt64()))

	property.Check(t, "reports that came one by one end where all at once do", property.Options{Runs: often}, prop.ForAll(func(seed uint64) bool {
		in, dice := random(seed)
		whole := conditions.Aggregate(in)

		dice.Shuffle(len(in.Statuses), func(i, j int) {
			in.Statuses[i], in.Statuses[j] = in.Statuses[j], in.Statuses[i]
		})

		step := in
		for i := range len(in.Statuses) + 1 {
			step.Statuses = in.Statuses[:i]
			step.Previous = conditions.Aggregate(step)
		}

		for _, one := range whole {
			// What was known before is history, which is what LastKnownReconciled is for.
			if one.Type == "LastKnownReconciled" {
				continue
			}

			got, _ := conditions.Condition(step.Previous, one.Type)
			if got.Status != one.Status || got.Reason != one.Reason || got.ObservedGeneration != one.ObservedGeneration ||
				!got.LastUpdatedTime.Equal(one.LastUpdatedTime) {
				return false
			}
		}

		return true
	}, gen.UInt64()))
}

// TestNeverTrueTooEarly: Reconciled is True only if all that it says is so, by a rule
// written apart.
func TestNeverTrueTooEarly(t *testing.T) {
	t.Parallel()

	property.Check(t, "Reconciled means all adapters, at this generation, and nothing below", property.Options{Runs: often}, prop.ForAll(func(seed uint64) bool {
		in, _ := random(seed)
		byName := map[string]openapi.AdapterStatus{}

		for _, one := range in.Statuses {
			byName[one.Adapter] = one
		}

		done := 0

		for _, name := range in.Required {
			one, there := byName[name]
			place := 0

			if in.Deleting {
				place = 1
			}

			if there && one.ObservedGeneration == in.Generation && one.Conditions[0].Status != "Unknown" &&
				one.Conditions[place].Status == "True" {
				done++
			}
		}

		want := len(in.Required) > 0 && done == len(in.Required) && (!in.Deleting || in.Children == 0)
		got, _ := conditions.Condition(conditions.Aggregate(in), "Reconciled")

		return (got.Status == "True") == want && (!want || got.ObservedGeneration == in.Generation) &&
			(!in.Deleting || !conditions.Finished(in) || len(in.Required) == 0 || want)
	}, gen.UInt64()))

	property.Check(t, "aggregating again changes nothing", property.Options{Runs: often}, prop.ForAll(func(seed uint64) bool {
		in, _ := random(seed)
		in.Previous = conditions.Aggregate(in)

		return cmp.Equal(in.Previous, conditions.Aggregate(in))
	}, gen.UInt64()))
}
