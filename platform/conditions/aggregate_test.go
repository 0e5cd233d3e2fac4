// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
)

// addSeconds returns a time the given number of seconds after the start.
func addSeconds(seconds int) time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}

// parseReport parses an adapter's report such as "dns@2 True +30 Finalized=True".
func parseReport(t *testing.T, text string) openapi.AdapterStatus {
	t.Helper()

	parts := strings.Fields(text)
	name, generation, _ := strings.Cut(parts[0], "@")
	out := openapi.AdapterStatus{
		Adapter: name, ObservedGeneration: int32(generation[0] - '0'),
		Conditions: []openapi.AdapterCondition{{Type: "Available", Status: parts[1], Reason: "Said"}},
	}

	for _, more := range parts[2:] {
		if seconds, found := strings.CutPrefix(more, "+"); found {
			took, err := time.ParseDuration(seconds + "s")
			if err != nil {
				t.Fatal(err)
			}

			out.LastReportTime = addSeconds(0).Add(took)

			continue
		}

		conditionType, status, _ := strings.Cut(more, "=")
		out.Conditions = append(out.Conditions, openapi.AdapterCondition{Type: conditionType, Status: status})
	}

	return out
}

// TestReconciled has a case for each rule of Reconciled.
func TestReconciled(t *testing.T) {
	t.Parallel()

	both := []string{"dns", "namespace"}
	gone := []conditions.MissingReference{{Type: "network", ID: "n1", Since: addSeconds(50)}}

	for _, tc := range []struct {
		name       string
		generation int32
		deleting   bool
		required   []string
		reports    []string
		children   int
		missing    []conditions.MissingReference
		status     string
		reason     string
		message    string
		observed   int32
		updated    int
	}{
		{name: "no report", generation: 1, required: both, status: "False", reason: "ReconciledMissingAdapters", message: "dns, namespace"},
		{name: "one of two", generation: 1, required: both, reports: []string{"dns@1 True +5"}, status: "False", reason: "ReconciledMissingAdapters", message: "from namespace", observed: 1, updated: 5},
		{name: "all", generation: 1, required: both, reports: []string{"dns@1 True +5", "namespace@1 True +3"}, status: "True", reason: "ReconciledAll", observed: 1, updated: 3},
		{name: "one fails", generation: 1, required: both, reports: []string{"dns@1 True +5", "namespace@1 False +3"}, status: "False", reason: "ReconciledFailedAdapters", message: "not Available: namespace", observed: 1, updated: 3},
		{name: "one report of the previous generation", generation: 2, required: both, reports: []string{"dns@1 True +5", "namespace@2 True +7"}, status: "False", reason: "ReconciledMissingAdapters", message: "generation 2 from dns", observed: 2, updated: 7},
		{name: "another adapter does not count", generation: 1, required: both, reports: []string{"dns@1 True +5", "namespace@1 True +3", "other@1 False +1"}, status: "True", reason: "ReconciledAll", observed: 1, updated: 3},
		{name: "Unknown is no report", generation: 1, required: both, reports: []string{"dns@1 True +5", "namespace@1 Unknown +3"}, status: "False", reason: "ReconciledMissingAdapters", message: "from namespace", observed: 1, updated: 5},
		{name: "available is not finalized", generation: 2, deleting: true, required: both, reports: []string{"dns@2 True +5", "namespace@2 True +3 Finalized=True"}, status: "False", reason: "ReconciledFailedAdapters", message: "not Finalized: dns", observed: 2, updated: 3},
		{name: "finalized, available or not", generation: 2, deleting: true, required: both, reports: []string{"dns@2 False +5 Finalized=True", "namespace@2 True +3 Finalized=True"}, status: "True", reason: "ReconciledAll", observed: 2, updated: 3},
		{name: "finalized before deletion", generation: 2, deleting: true, required: both, reports: []string{"dns@1 True +5 Finalized=True", "namespace@2 True +3 Finalized=True"}, status: "False", reason: "ReconciledMissingAdapters", message: "from dns", observed: 2, updated: 3},
		{name: "children are left", generation: 2, deleting: true, required: both, children: 2, reports: []string{"dns@2 True +5 Finalized=True", "namespace@2 True +3 Finalized=True"}, status: "False", reason: "ReconciledWaitingForChildren", message: "still exist", observed: 2, updated: 3},
		{name: "a reference is missing", generation: 1, required: both, missing: gone, reports: []string{"dns@1 True +5", "namespace@1 True +3"}, status: "False", reason: "ReferenceMissing", message: "network n1 does not exist or is being deleted", observed: 1, updated: 3},
		{name: "a reference is missing while deleting", generation: 2, deleting: true, required: []string{"dns"}, missing: gone, reports: []string{"dns@2 True +5 Finalized=True"}, status: "True", reason: "ReconciledAll", observed: 2, updated: 5},
		{name: "nothing is required", generation: 1},
		{name: "nothing is required, children are left", generation: 2, deleting: true, children: 1, status: "False", reason: "ReconciledWaitingForChildren"},
		{name: "nothing is required, a reference is missing", generation: 1, missing: gone, status: "False", reason: "ReferenceMissing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			in := conditions.Input{
				Generation: tc.generation, UpdatedTime: addSeconds(0), Deleting: tc.deleting, Required: tc.required,
				Children: tc.children, Missing: tc.missing,
			}
			for _, text := range tc.reports {
				in.Statuses = append(in.Statuses, parseReport(t, text))
			}

			got, found := conditions.Condition(conditions.Aggregate(in), "Reconciled")
			if found != (tc.status != "") {
				t.Fatalf("%+v", got)
			}

			if got.Status != tc.status || got.Reason != tc.reason || got.ObservedGeneration != tc.observed || !strings.Contains(got.Message, tc.message) {
				t.Errorf("%+v", got)
			}

			if found && !got.LastUpdatedTime.Equal(addSeconds(tc.updated)) {
				t.Errorf("updated %s, want %s", got.LastUpdatedTime, addSeconds(tc.updated))
			}
		})
	}
}

// TestLastKnownReconciled applies a series of reports to one resource.
func TestLastKnownReconciled(t *testing.T) {
	t.Parallel()

	in := conditions.Input{Generation: 1, UpdatedTime: addSeconds(0), Required: []string{"dns", "namespace"}}

	for _, step := range []struct {
		name       string
		generation int32
		reports    []string
		status     string
		observed   int32
		transition int
	}{
		{"created", 1, nil, "False", 0, 0},
		{"one of two", 1, []string{"dns@1 True +1"}, "False", 0, 0},
		{"both", 1, []string{"dns@1 True +1", "namespace@1 True +2"}, "True", 1, 2},
		{"again", 1, []string{"dns@1 True +3", "namespace@1 True +4"}, "True", 1, 2},
		{"changed", 2, []string{"dns@1 True +3", "namespace@1 True +4"}, "True", 1, 2},
		{"one at the new generation", 2, []string{"dns@2 True +5", "namespace@1 True +4"}, "True", 1, 2},
		{"it fails at the new generation", 2, []string{"dns@2 False +6", "namespace@1 True +4"}, "True", 1, 2},
		{"the other fails at the old generation", 2, []string{"dns@2 False +6", "namespace@1 False +7"}, "False", 1, 7},
		{"both available, at different generations", 2, []string{"dns@2 True +8", "namespace@1 True +9"}, "False", 1, 7},
		{"both at the new generation", 2, []string{"dns@2 True +8", "namespace@2 True +10"}, "True", 2, 10},
		{"one fails", 2, []string{"dns@2 False +11", "namespace@2 True +10"}, "False", 2, 11},
		{"both at a third generation, one fails", 3, []string{"dns@3 False +12", "namespace@3 True +13"}, "False", 3, 11},
	} {
		in.Generation, in.Statuses = step.generation, nil
		for _, text := range step.reports {
			in.Statuses = append(in.Statuses, parseReport(t, text))
		}

		in.Previous = conditions.Aggregate(in)

		got, _ := conditions.Condition(in.Previous, "LastKnownReconciled")
		if got.Status != step.status || got.ObservedGeneration != step.observed || !got.LastTransitionTime.Equal(addSeconds(step.transition)) {
			t.Errorf("%s: %+v", step.name, got)
		}
	}
}

func TestTimesAndAdapters(t *testing.T) {
	t.Parallel()

	in := conditions.Input{Generation: 1, UpdatedTime: addSeconds(0), Required: []string{"dns-zone"}}
	in.Previous = conditions.Aggregate(in)
	in.Statuses = []openapi.AdapterStatus{parseReport(t, "dns-zone@1 True +10")}
	in.Previous = conditions.Aggregate(in)

	want := []openapi.ResourceCondition{
		{
			Type: "Reconciled", Status: "True", Reason: "ReconciledAll", Message: "every required adapter has finished",
			ObservedGeneration: 1, CreatedTime: addSeconds(0), LastUpdatedTime: addSeconds(10), LastTransitionTime: addSeconds(10),
		},
		{
			Type: "LastKnownReconciled", Status: "True", Reason: "LastKnownAll", Message: "every required adapter is available",
			ObservedGeneration: 1, CreatedTime: addSeconds(0), LastUpdatedTime: addSeconds(10), LastTransitionTime: addSeconds(10),
		},
		{
			Type: "DnsZoneSuccessful", Status: "True", Reason: "Said",
			ObservedGeneration: 1, CreatedTime: addSeconds(10), LastUpdatedTime: addSeconds(10), LastTransitionTime: addSeconds(10),
		},
	}
	if diff := cmp.Diff(want, in.Previous); diff != "" {
		t.Error(diff)
	}

	in.Statuses = []openapi.AdapterStatus{parseReport(t, "dns-zone@1 True +20")}
	for _, condition := range conditions.Aggregate(in) {
		if !condition.LastTransitionTime.Equal(addSeconds(10)) || !condition.LastUpdatedTime.Equal(addSeconds(20)) {
			t.Errorf("after a repeated report: %+v", condition)
		}
	}
}

func TestFinished(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		name string
		in   conditions.Input
		text string
		want bool
	}{
		{"not deleting", conditions.Input{Generation: 1, Required: []string{"dns"}}, "dns@1 True Finalized=True", false},
		{"finalized", conditions.Input{Generation: 2, Deleting: true, Required: []string{"dns"}}, "dns@2 False Finalized=True", true},
		{"finalized before", conditions.Input{Generation: 2, Deleting: true, Required: []string{"dns"}}, "dns@1 True Finalized=True", false},
		{"not finalized", conditions.Input{Generation: 2, Deleting: true, Required: []string{"dns"}}, "dns@2 True Finalized=False", false},
		{"finalized by another adapter", conditions.Input{Generation: 2, Deleting: true, Required: []string{"dns"}}, "other@2 True Finalized=True", false},
		{"with a child", conditions.Input{Generation: 2, Deleting: true, Children: 1, Required: []string{"dns"}}, "dns@2 True Finalized=True", false},
		{"no adapter required", conditions.Input{Generation: 2, Deleting: true}, "other@2 True", true},
	} {
		tc.in.Statuses = []openapi.AdapterStatus{parseReport(t, tc.text)}
		if got := conditions.IsFinished(tc.in); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

func TestDiscard(t *testing.T) {
	t.Parallel()

	stored := &openapi.AdapterStatus{ObservedGeneration: 2, ObservedTime: addSeconds(100)}
	fine := &openapi.AdapterStatus{ObservedGeneration: 2, ObservedTime: addSeconds(100).Add(568 * time.Millisecond)}
	newReport := func(generation int32, seconds int, available string) openapi.StatusReport {
		return openapi.StatusReport{
			ObservedGeneration: generation, ObservedTime: addSeconds(seconds),
			Conditions: []openapi.AdapterCondition{{Type: "Available", Status: available}},
		}
	}

	for _, tc := range []struct {
		name    string
		report  openapi.StatusReport
		stored  *openapi.AdapterStatus
		discard bool
	}{
		{"first", newReport(1, 0, "True"), nil, false},
		{"first Unknown", newReport(3, 0, "Unknown"), nil, false},
		{"first, of a future generation", newReport(4, 0, "True"), nil, true},
		{"no time", openapi.StatusReport{ObservedGeneration: 1}, nil, true},
		{"newer generation, observed earlier", newReport(3, 1, "True"), stored, false},
		{"same generation and time", newReport(2, 100, "True"), stored, false},
		{"same generation, time in whole seconds", newReport(2, 100, "True"), fine, false},
		{"same generation, earlier by a fraction of a second", newReport(2, 99, "True"), fine, true},
		{"same generation, earlier", newReport(2, 99, "True"), stored, true},
		{"older generation", newReport(1, 200, "True"), stored, true},
		{"Unknown", newReport(3, 200, "Unknown"), stored, true},
		{"future generation", newReport(4, 200, "True"), stored, true},
	} {
		if got := conditions.DiscardReason(tc.report, tc.stored, 3); (got != "") != tc.discard {
			t.Errorf("%s: %q", tc.name, got)
		}
	}
}

// newRandomInput returns an input with up to four adapters and random reports.
func newRandomInput(seed uint64) (conditions.Input, *rand.Rand) {
	dice := rand.New(rand.NewPCG(seed, 1))
	names := []string{"a", "b", "c", "d", "stranger"}
	in := conditions.Input{
		Generation: 1 + dice.Int32N(3), UpdatedTime: addSeconds(0), Deleting: dice.IntN(3) == 0, Required: names[:dice.IntN(5)],
		Children: dice.IntN(2) * dice.IntN(3),
	}

	for _, name := range names {
		if dice.IntN(5) == 0 {
			continue
		}

		status := func() string { return []string{"True", "True", "True", "False", "Unknown"}[dice.IntN(5)] }
		in.Statuses = append(in.Statuses, openapi.AdapterStatus{
			Adapter: name, ObservedGeneration: 1 + dice.Int32N(in.Generation), LastReportTime: addSeconds(dice.IntN(100)),
			Conditions: []openapi.AdapterCondition{
				{Type: "Available", Status: status()}, {Type: "Finalized", Status: status()},
			},
		})
	}

	return in, dice
}

// manyRuns is the number of runs of a property whose check is cheap.
const manyRuns = 500

// TestOrder checks that conditions do not depend on the order in which independent reports arrived.
func TestOrder(t *testing.T) {
	t.Parallel()

	property.Check(t, "the order of reports does not matter", property.Options{Runs: manyRuns}, prop.ForAll(func(seed uint64) bool {
		in, dice := newRandomInput(seed)
		before := conditions.Aggregate(in)

		dice.Shuffle(len(in.Statuses), func(i, j int) {
			in.Statuses[i], in.Statuses[j] = in.Statuses[j], in.Statuses[i]
		})

		return cmp.Equal(before, conditions.Aggregate(in))
	}, gen.UInt64()))

	property.Check(t, "reports one by one and all at once have the same result", property.Options{Runs: manyRuns}, prop.ForAll(func(seed uint64) bool {
		in, dice := newRandomInput(seed)
		whole := conditions.Aggregate(in)

		dice.Shuffle(len(in.Statuses), func(i, j int) {
			in.Statuses[i], in.Statuses[j] = in.Statuses[j], in.Statuses[i]
		})

		step := in
		for i := range len(in.Statuses) + 1 {
			step.Statuses = in.Statuses[:i]
			step.Previous = conditions.Aggregate(step)
		}

		for _, condition := range whole {
			// LastKnownReconciled depends on earlier states by design.
			if condition.Type == "LastKnownReconciled" {
				continue
			}

			got, _ := conditions.Condition(step.Previous, condition.Type)
			if got.Status != condition.Status || got.Reason != condition.Reason || got.ObservedGeneration != condition.ObservedGeneration ||
				!got.LastUpdatedTime.Equal(condition.LastUpdatedTime) {
				return false
			}
		}

		return true
	}, gen.UInt64()))
}

// TestNeverTrueTooEarly compares Reconciled=True with a second, independent implementation of its
// rule.
func TestNeverTrueTooEarly(t *testing.T) {
	t.Parallel()

	property.Check(t, "Reconciled means all adapters at this generation, and no children", property.Options{Runs: manyRuns}, prop.ForAll(func(seed uint64) bool {
		in, _ := newRandomInput(seed)
		byName := map[string]openapi.AdapterStatus{}

		for _, condition := range in.Statuses {
			byName[condition.Adapter] = condition
		}

		done := 0

		for _, name := range in.Required {
			condition, there := byName[name]
			place := 0

			if in.Deleting {
				place = 1
			}

			if there && condition.ObservedGeneration == in.Generation && condition.Conditions[0].Status != "Unknown" &&
				condition.Conditions[place].Status == "True" {
				done++
			}
		}

		want := len(in.Required) > 0 && done == len(in.Required) && (!in.Deleting || in.Children == 0)
		got, _ := conditions.Condition(conditions.Aggregate(in), "Reconciled")

		return (got.Status == "True") == want && (!want || got.ObservedGeneration == in.Generation) &&
			(!in.Deleting || !conditions.IsFinished(in) || len(in.Required) == 0 || want)
	}, gen.UInt64()))

	property.Check(t, "aggregating again changes nothing", property.Options{Runs: manyRuns}, prop.ForAll(func(seed uint64) bool {
		in, _ := newRandomInput(seed)
		in.Previous = conditions.Aggregate(in)

		return cmp.Equal(in.Previous, conditions.Aggregate(in))
	}, gen.UInt64()))
}
