// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"errors"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
)

func newBaseTime() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// newResource returns a resource with the condition Reconciled, or without it if observed is negative.
func newResource(generation, observed int32, reconciled bool, updated time.Time) *openapi.Resource {
	r := &openapi.Resource{Id: "r", Kind: "Cluster", Generation: generation}
	if observed < 0 {
		return r
	}

	status := "False"
	if reconciled {
		status = "True"
	}

	r.Status.Conditions = []openapi.ResourceCondition{
		{Type: "Other", Status: "True", LastUpdatedTime: updated.Add(time.Hour)},
		{Type: "Reconciled", Status: status, ObservedGeneration: observed, LastUpdatedTime: updated},
	}

	return r
}

func TestDefaultDecision(t *testing.T) {
	t.Parallel()

	ago := func(d time.Duration) time.Time { return newBaseTime().Add(-d) }

	for name, tc := range map[string]struct {
		resource *openapi.Resource
		sent     int32
		sentTime time.Time
		// seen is how long ago this process read the resource in this state.
		seen time.Duration
		want string
	}{
		"new":                                     {resource: newResource(1, 0, false, ago(0)), want: ReasonCreated},
		"new, sent":                               {resource: newResource(1, 0, false, ago(0)), sent: 1, sentTime: ago(time.Second)},
		"new, sent, no reaction":                  {resource: newResource(1, 0, false, ago(time.Minute)), sent: 1, sentTime: ago(10 * time.Second), want: ReasonNotReconciled},
		"changed":                                 {resource: newResource(2, 1, true, ago(0)), sent: 1, sentTime: ago(0), want: ReasonChanged},
		"changed, sent":                           {resource: newResource(2, 1, false, ago(time.Hour)), sent: 2, sentTime: ago(9 * time.Second)},
		"changed, sent, no reaction":              {resource: newResource(2, 1, true, ago(time.Hour)), sent: 2, sentTime: ago(11 * time.Second), want: ReasonNotReconciled},
		"not reconciled, recent":                  {resource: newResource(2, 2, false, ago(9*time.Second))},
		"not reconciled, old":                     {resource: newResource(2, 2, false, ago(10*time.Second)), want: ReasonNotReconciled},
		"not reconciled, old, sent":               {resource: newResource(2, 2, false, ago(time.Hour)), sent: 2, sentTime: ago(5 * time.Second)},
		"reconciled":                              {resource: newResource(2, 2, true, ago(29*time.Minute))},
		"reconciled long ago":                     {resource: newResource(2, 2, true, ago(30*time.Minute)), want: ReasonDrift},
		"reconciled long ago, sent":               {resource: newResource(2, 2, true, ago(time.Hour)), sent: 2, sentTime: ago(29 * time.Minute)},
		"no adapters, never sent":                 {resource: newResource(1, -1, false, ago(0)), want: ReasonCreated},
		"no adapters, sent":                       {resource: newResource(1, -1, false, ago(0)), sent: 1, sentTime: ago(29 * time.Minute)},
		"no adapters, sent long ago":              {resource: newResource(1, -1, false, ago(0)), sent: 1, sentTime: ago(30 * time.Minute), want: ReasonDrift},
		"the API's clock is an hour ahead":        {resource: newResource(2, 2, false, newBaseTime().Add(time.Hour)), seen: 15 * time.Second, want: ReasonNotReconciled},
		"an older generation was sent":            {resource: newResource(3, 3, false, ago(time.Second)), sent: 1, sentTime: ago(time.Hour)},
		"reconciled at an older generation, sent": {resource: newResource(3, 2, true, ago(time.Hour)), sent: 3, sentTime: ago(10 * time.Second), want: ReasonNotReconciled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newIndex(false)
			if err := b.put(tc.resource, ago(tc.seen), ago(tc.seen)); err != nil {
				t.Fatal(err)
			}

			e := b.entries["r"]
			e.sentGeneration, e.sentTime = tc.sent, tc.sentTime

			got, err := defaultDecision{notReconciledInterval: 10 * time.Second, reconciledInterval: 30 * time.Minute}.decide(t.Context(), e, newBaseTime())
			if got != tc.want || err != nil {
				t.Errorf("decide() = %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// TestBookIgnoresOlderResponses checks that the response to an older request does not replace that to a
// newer one.
func TestBookIgnoresOlderResponses(t *testing.T) {
	t.Parallel()

	b := newIndex(false)
	early, late := newBaseTime(), newBaseTime().Add(time.Second)

	for i, tc := range []struct {
		generation int32
		asked      time.Time
		want       int32
	}{{2, late, 2}, {1, early, 2}, {3, late, 3}} {
		err := b.put(newResource(tc.generation, 0, false, early), tc.asked, late)
		if got := b.entries["r"].generation; got != tc.want || err != nil {
			t.Errorf("response %d: generation %d, %v", i, got, err)
		}
	}

	b.remove("r", early)

	if b.entries["r"] == nil || b.entries["r"].generation != 3 {
		t.Error("an old list removed a resource")
	}

	if missing := b.findMissing("", "", nil); len(missing) != 1 {
		t.Errorf("missing %v", missing)
	}

	if missing := b.findMissing("r", "", nil); len(missing) != 0 {
		t.Errorf("missing %v on another page", missing)
	}

	b.remove("r", late)

	if b.size() != 0 {
		t.Error("a new list did not remove the missing resource")
	}
}

// TestDecision evaluates expressions, including one that is equivalent to the default decision.
func TestDecision(t *testing.T) {
	t.Parallel()

	whole := newResource(2, 2, false, newBaseTime().Add(-11*time.Second))
	whole.Spec = map[string]any{"size": 3, "ratio": 0.5}
	whole.Labels = map[string]string{"a.b/c": "x"}

	for name, tc := range map[string]struct {
		params []platform.DecisionParam
		result string
		want   string
		fails  bool
	}{
		"the default": {
			params: []platform.DecisionParam{
				{Name: "r", Expr: `condition("Reconciled")`},
				{Name: "age", Expr: `now - r.last_updated_time`},
				{Name: "fresh", Expr: `resource.generation > r.observed_generation`},
			},
			result: `fresh || r.status == "True" && age > duration("30m") || r.status != "True" && age > duration("10s")`,
			want:   ReasonDecision,
		},
		"false":                       {result: `resource.spec.size == 4`},
		"numbers":                     {result: `resource.spec.size == 3 && resource.spec.ratio < 1.0 && resource.generation == 2`, want: ReasonDecision},
		"an absent condition is zero": {result: `condition("Nope").status == "" && condition("Nope").observed_generation == 0 && now > condition("Nope").last_updated_time`, want: ReasonDecision},
		"a computed condition":        {result: `condition("Recon" + "ciled").status == "False"`, want: ReasonDecision},
		"an absent field":             {result: `resource.spec.colour == "red"`, fails: true},
		"not a bool":                  {result: `resource.spec.size`, fails: true},
		"keys with dots":              {result: `resource.labels["a.b/c"] == "x"`, want: ReasonDecision},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d, err := compileDecision(&platform.Sentinel{
				MessageDecision: &platform.Decision{Params: tc.params, Result: tc.result},
			}, false, clocktesting.NewFakePassiveClock(newBaseTime()))
			if err != nil {
				t.Fatal(err)
			}

			b := newIndex(d.needsResource())
			if err := b.put(whole, newBaseTime(), newBaseTime()); err != nil {
				t.Fatal(err)
			}

			got, err := d.decide(t.Context(), b.entries["r"], newBaseTime())
			if got != tc.want || (err != nil) != tc.fails {
				t.Errorf("decide() = %q, %v", got, err)
			}

			if err != nil && strings.Contains(err.Error(), "0.5") {
				t.Errorf("the error contains a value: %v", err)
			}
		})
	}
}

func TestInvalidExpressions(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		decision platform.Decision
		want     string
	}{
		"no result":              {platform.Decision{}, "message_decision.result"},
		"a later param":          {platform.Decision{Params: []platform.DecisionParam{{Name: "a", Expr: "b"}, {Name: "b", Expr: "1"}}, Result: "true"}, "params[0].expr"},
		"a bad name":             {platform.Decision{Params: []platform.DecisionParam{{Name: "a b", Expr: "1"}}, Result: "true"}, "params[0].name"},
		"unbalanced parentheses": {platform.Decision{Params: []platform.DecisionParam{{Name: "a", Expr: "1)) + ((1"}}, Result: "true"}, "params[0].expr"},
		"an unknown function":    {platform.Decision{Result: "exec('rm')"}, "exec"},
		"a string result":        {platform.Decision{Result: `"true"`}, "bool"},
	} {
		_, err := compileDecision(&platform.Sentinel{MessageDecision: &tc.decision}, false, nil)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := compileData(map[string]any{"a": map[string]any{"b": "nope"}, "c": []any{1}}); err == nil ||
		!strings.Contains(err.Error(), "message_data.a.b") || !strings.Contains(err.Error(), "message_data.c") {
		t.Errorf("errors of message_data: %v", err)
	}
}

func TestSearch(t *testing.T) {
	t.Parallel()

	got := strings.Join(buildSearch([]platform.LabelSelector{{Label: "a.b/c", Value: "it's"}, {Label: "d", Value: ""}}), " and ")
	if want := `labels.'a.b/c' = 'it''s' and labels.'d' = ''`; got != want {
		t.Errorf("search %s, want %s", got, want)
	}

	one := &platform.Sentinel{ResourceType: "clusters"}
	two := &platform.Sentinel{ResourceType: "clusters", ResourceSelector: []platform.LabelSelector{{Label: "a", Value: "b"}}}

	if leaseName(one) == leaseName(two) || leaseName(one) != leaseName(&platform.Sentinel{ResourceType: "clusters", Topic: "clusters"}) {
		t.Error("lease names do not depend on topic and selector")
	}

	if err := errors.Join(Validate(one)); err == nil {
		t.Error("an incomplete configuration is valid")
	}
}

// TestGenerationsHandledByOtherAdapters checks that an adapter that follows the API itself also gets
// generations to which other adapters have reacted.
func TestGenerationsHandledByOtherAdapters(t *testing.T) {
	t.Parallel()

	e := &entry{generation: 2, observedGeneration: 2, hasReconciled: true, updatedTime: newBaseTime(), sentGeneration: 1, sentTime: newBaseTime()}
	paces := defaultDecision{notReconciledInterval: time.Hour, reconciledInterval: time.Hour}

	for _, tc := range []struct {
		restarted bool
		want      string
	}{{false, ""}, {true, ReasonChanged}} {
		paces.shouldResendAll = tc.restarted

		if got, err := paces.decide(t.Context(), e, newBaseTime()); got != tc.want || err != nil {
			t.Errorf("new process %t: %q, %v, want %q", tc.restarted, got, err, tc.want)
		}
	}

	e.sentTime = time.Time{}
	if got, _ := paces.decide(t.Context(), e, newBaseTime()); got != ReasonStarted {
		t.Errorf("a new process: %q", got)
	}
}
