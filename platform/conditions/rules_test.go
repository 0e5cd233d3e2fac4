// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
)

func newRule(when, status, reason, message string) platform.MappedCondition {
	expression := func(text string) platform.Expression { return platform.Expression{Expression: text} }

	return platform.MappedCondition{
		Type: "Mapped", When: expression(when),
		Output: platform.ConditionOutput{Status: expression(status), Reason: expression(reason), Message: expression(message)},
	}
}

func TestRules(t *testing.T) {
	t.Parallel()

	data := openapi.Object{"quota": 25.0, "text": "secret-text"}
	in := conditions.Input{Generation: 3, UpdatedTime: addSeconds(0), Statuses: []openapi.AdapterStatus{{
		Adapter: "a", ObservedGeneration: 2, LastReportTime: addSeconds(9), Data: &data,
		Conditions: []openapi.AdapterCondition{{Type: "Ready", Status: "True", Reason: "R"}, {Type: "Dim", Status: "Unknown"}},
	}}}
	resource := map[string]any{"name": "home", "generation": int64(3)}

	for _, tc := range []struct {
		name string
		rule platform.MappedCondition
		want string
		err  string
	}{
		{name: "holds", rule: newRule("resource.generation == 3", `"True"`, `"Reason"`, `"of " + resource.name`), want: "True Reason of home"},
		{name: "does not hold", rule: newRule("resource.generation == 4", `"True"`, `"Reason"`, `"m"`)},
		{name: "lower case", rule: newRule("true", `"false"`, `"Reason"`, `""`), want: "False Reason "},
		{name: "from a report", rule: newRule("true", `statuses[0].conditions[0].status`, `statuses[0].conditions[0].reason`, `string(dig(statuses[0], "data.quota"))`), want: "True R 25"},
		{name: "Unknown is left out", rule: newRule(`statuses[0].conditions.exists(c, c.type == "Dim")`, `"True"`, `"Reason"`, `""`)},
		{name: "another status", rule: newRule("true", `"Maybe"`, `"Reason"`, `""`), err: "True or False"},
		{name: "not a string", rule: newRule("true", `"True"`, `3`, `""`), err: "output.reason"},
		{name: "an error in the gate", rule: newRule("resource.missing == 1", `"True"`, `"Reason"`, `""`), err: "no such key"},
		{name: "an error in the message", rule: newRule("true", `"True"`, `"Reason"`, `string(int(statuses[0].data.text))`), err: "output.message"},
		{name: "long reason", rule: newRule("true", `"True"`, `"`+strings.Repeat("r", 257)+`"`, `""`), err: "256"},
		{name: "too expensive", rule: newRule("[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, a+b+c+d > 0))))", `"True"`, `""`, `""`), err: "cost limit"},
	} {
		rules, err := conditions.Compile([]platform.MappedCondition{tc.rule}, clock.RealClock{})
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}

		got, err := rules.Apply(t.Context(), in, resource)
		if tc.err != "" {
			if !errors.Is(err, conditions.ErrRule) || !strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "secret-text") {
				t.Errorf("%s: %v", tc.name, err)
			}

			continue
		}

		text := ""
		if len(got) == 1 {
			text = got[0].Status + " " + got[0].Reason + " " + got[0].Message

			if got[0].ObservedGeneration != 3 || !got[0].LastUpdatedTime.Equal(addSeconds(9)) {
				t.Errorf("%s: %+v", tc.name, got[0])
			}
		}

		if err != nil || text != tc.want {
			t.Errorf("%s: %q %v, want %q", tc.name, text, err, tc.want)
		}
	}
}

func TestLongMessagesAreCut(t *testing.T) {
	t.Parallel()

	rules, err := conditions.Compile([]platform.MappedCondition{
		newRule("true", `"True"`, `""`, `"`+strings.Repeat("é", 1500)+`"`),
	}, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}

	got, err := rules.Apply(t.Context(), conditions.Input{}, map[string]any{})
	if err != nil || len(got[0].Message) != 2048 || !utf8.ValidString(got[0].Message) {
		t.Errorf("%d bytes, %v", len(got[0].Message), err)
	}
}

func TestCompileNamesAllErrors(t *testing.T) {
	t.Parallel()

	_, err := conditions.Compile([]platform.MappedCondition{
		newRule("statusses.size() > 0", `"True"`, `nope()`, ""), newRule("1", `"True"`, `""`, `""`),
	}, clock.RealClock{})

	for _, want := range []string{"conditions[0]", "statusses", "nope", "output.message", "conditions[1]", "bool"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not contain %q", err, want)
		}
	}
}
