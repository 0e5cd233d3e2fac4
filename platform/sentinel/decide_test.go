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

func base() time.Time { return time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC) }

// resource returns a resource with the condition Reconciled, or without it if observed is negative.
func resource(generation, observed int32, reconciled bool, updated time.Time) *openapi.Resource {
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

func TestCadence(t *testing.T) {
	t.Parallel()

	ago := func(d time.Duration) time.Time { return base().Add(-d) }

	for name, tc := range map[string]struct {
		resource *openapi.Resource
		sent     int32
		sentTime time.Time
		// seen is how long ago this process read the resource in this state.
		seen time.Duration
		want string
	}{
		"new":                                  {resource: resource(1, 0, false, ago(0)), want: ReasonCreated},
		"new, and told":                        {resource: resource(1, 0, false, ago(0)), sent: 1, sentTime: ago(time.Second)},
		"new, told, nobody reacts":             {resource: resource(1, 0, false, ago(time.Minute)), sent: 1, sentTime: ago(10 * time.Second), want: ReasonNotReconciled},
		"changed":                              {resource: resource(2, 1, true, ago(0)), sent: 1, sentTime: ago(0), want: ReasonChanged},
		"changed, and told":                    {resource: resource(2, 1, false, ago(time.Hour)), sent: 2, sentTime: ago(9 * time.Second)},
		"changed, told, nobody reacts":         {resource: resource(2, 1, true, ago(time.Hour)), sent: 2, sentTime: ago(11 * time.Second), want: ReasonNotReconciled},
		"not reconciled, fresh":                {resource: resource(2, 2, false, ago(9*time.Second))},
		"not reconciled, old":                  {resource: resource(2, 2, false, ago(10*time.Second)), want: ReasonNotReconciled},
		"not reconciled, old, told":            {resource: resource(2, 2, false, ago(time.Hour)), sent: 2, sentTime: ago(5 * time.Second)},
		"reconciled":                           {resource: resource(2, 2, true, ago(29*time.Minute))},
		"reconciled long ago":                  {resource: resource(2, 2, true, ago(30*time.Minute)), want: ReasonDrift},
		"reconciled long ago, told":            {resource: resource(2, 2, true, ago(time.Hour)), sent: 2, sentTime: ago(29 * time.Minute)},
		"no adapters, never told":              {resource: resource(1, -1, false, ago(0)), want: ReasonCreated},
		"no adapters, told":                    {resource: resource(1, -1, false, ago(0)), sent: 1, sentTime: ago(29 * time.Minute)},
		"no adapters, told long ago":           {resource: resource(1, -1, false, ago(0)), sent: 1, sentTime: ago(30 * time.Minute), want: ReasonDrift},
		"the API's clock is an hour ahead":     {resource: resource(2, 2, false, base().Add(time.Hour)), seen: 15 * time.Second, want: ReasonNotReconciled},
		"an older generation was told to it":   {resource: resource(3, 3, false, ago(time.Second)), sent: 1, sentTime: ago(time.Hour)},
		"reconciled at an older one, and told": {resource: resource(3, 2, true, ago(time.Hour)), sent: 3, sentTime: ago(10 * time.Second), want: ReasonNotReconciled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newIndex(false)
			if err := b.put(tc.resource, ago(tc.seen), ago(tc.seen)); err != nil {
				t.Fatal(err)
			}

			e := b.entries["r"]
			e.sentGeneration, e.sentTime = tc.sent, tc.sentTime

			got, err := defaultDecision{notReconciledInterval: 10 * time.Second, reconciledInterval: 30 * time.Minute}.decide(t.Context(), e, base())
			if got != tc.want || err != nil {
				t.Errorf("decide() = %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// TestBook checks that the response to an older request does not replace that to a newer one.
func TestBook(t *testing.T) {
	t.Parallel()

	b := newIndex(false)
	early, late := base(), base().Add(time.Second)

	for i, tc := range []struct {
		generation int32
		asked      time.Time
		want       int32
	}{{2, late, 2}, {1, early, 2}, {3, late, 3}} {
		err := b.put(resource(tc.generation, 0, false, early), tc.asked, late)
		if got := b.entries["r"].generation; got != tc.want || err != nil {
			t.Errorf("answer %d: generation %d, %v", i, got, err)
		}
	}

	b.remove("r", early)

	if b.entries["r"] == nil || b.entries["r"].generation != 3 {
		t.Error("an old list forgets a resource")
	}

	if missing := b.findMissing("", "", nil); len(missing) != 1 {
		t.Errorf("missing %v", missing)
	}

	if missing := b.findMissing("r", "", nil); len(missing) != 0 {
		t.Errorf("missing %v on another page", missing)
	}

	b.remove("r", late)

	if b.size() != 0 {
		t.Error("a new list does not forget it")
	}
}

// TestDecision evaluates expressions, including one that is equivalent to the default decision.
func TestDecision(t *testing.T) {
	t.Parallel()

	whole := resource(2, 2, false, base().Add(-11*time.Second))
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
		"no bool":                     {result: `resource.spec.size`, fails: true},
		"keys with dots":              {result: `resource.labels["a.b/c"] == "x"`, want: ReasonDecision},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d, err := compileDecision(&platform.Sentinel{
				MessageDecision: &platform.Decision{Params: tc.params, Result: tc.result},
			}, false, clocktesting.NewFakePassiveClock(base()))
			if err != nil {
				t.Fatal(err)
			}

			b := newIndex(d.needsResource())
			if err := b.put(whole, base(), base()); err != nil {
				t.Fatal(err)
			}

			got, err := d.decide(t.Context(), b.entries["r"], base())
			if got != tc.want || (err != nil) != tc.fails {
				t.Errorf("decide() = %q, %v", got, err)
			}

			if err != nil && strings.Contains(err.Error(), "0.5") {
				t.Errorf("a value is in %v", err)
			}
		})
	}
}

func TestExpressionsThatCanNotBeMeant(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		decision platform.Decision
		want     string
	}{
		"no result":         {platform.Decision{}, "message_decision.result"},
		"a later param":     {platform.Decision{Params: []platform.DecisionParam{{Name: "a", Expr: "b"}, {Name: "b", Expr: "1"}}, Result: "true"}, "params[0].expr"},
		"a bad name":        {platform.Decision{Params: []platform.DecisionParam{{Name: "a b", Expr: "1"}}, Result: "true"}, "params[0].name"},
		"an unbalanced one": {platform.Decision{Params: []platform.DecisionParam{{Name: "a", Expr: "1)) + ((1"}}, Result: "true"}, "params[0].expr"},
		"a function":        {platform.Decision{Result: "exec('rm')"}, "exec"},
		"a text":            {platform.Decision{Result: `"true"`}, "bool"},
	} {
		_, err := compileDecision(&platform.Sentinel{MessageDecision: &tc.decision}, false, nil)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := compileData(map[string]any{"a": map[string]any{"b": "nope"}, "c": []any{1}}); err == nil ||
		!strings.Contains(err.Error(), "message_data.a.b") || !strings.Contains(err.Error(), "message_data.c") {
		t.Errorf("data: %v", err)
	}
}

// TestLeaseEndsByItself checks that a replica that cannot renew its lease stops sending before
// another replica can begin.
func TestLeaseEndsByItself(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(base())
	l := &lease{sentinel: &Sentinel{clock: clk}, expiry: base().Add(leaseTTL)}

	if !l.isHeld() {
		t.Error("a lease that was just taken is not held")
	}

	clk.Step(leaseTTL - leaseMargin)

	if l.isHeld() {
		t.Error("a lease is held to its very end")
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
		t.Error("leases are not told apart by what is sent")
	}

	if err := errors.Join(Validate(one)); err == nil {
		t.Error("half a configuration is valid")
	}
}

// TestWhatOthersHaveReactedTo checks that an adapter that follows the API itself also gets
// generations to which other adapters have reacted.
func TestWhatOthersHaveReactedTo(t *testing.T) {
	t.Parallel()

	e := &entry{generation: 2, observedGeneration: 2, hasReconciled: true, updatedTime: base(), sentGeneration: 1, sentTime: base()}
	paces := defaultDecision{notReconciledInterval: time.Hour, reconciledInterval: time.Hour}

	for _, tc := range []struct {
		anew bool
		want string
	}{{false, ""}, {true, ReasonChanged}} {
		paces.shouldResendAll = tc.anew

		if got, err := paces.decide(t.Context(), e, base()); got != tc.want || err != nil {
			t.Errorf("anew %t: %q, %v, want %q", tc.anew, got, err, tc.want)
		}
	}

	e.sentTime = time.Time{}
	if got, _ := paces.decide(t.Context(), e, base()); got != ReasonStarted {
		t.Errorf("a new process: %q", got)
	}
}
