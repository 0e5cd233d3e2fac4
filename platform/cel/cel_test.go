// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/platform/cel"
	"github.com/hyperfleet/hyperfleet/test/must"
)

var update = flag.Bool("update", false, "rewrite the golden list of functions")

func newEnv(t testing.TB, options cel.Options) *cel.Env {
	t.Helper()

	if options.Clock == nil {
		options.Clock = testclock.NewFakePassiveClock(time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC))
	}

	if options.Variables == nil {
		options.Variables = append(cel.NewDynVariables("x", "list", "secret"), cel.Variable{Name: "resources", Fields: []string{"job", "namespace"}})
	}

	out, err := cel.New(options)
	must.Do(t, err)

	return out
}

func newVars() map[string]any {
	conditions := []any{
		map[string]any{"type": "Ready", "status": "True", "last_transition_time": "2026-05-06T07:07:09Z"},
		map[string]any{"type": "Kube", "status": "False", "lastTransitionTime": "2026-05-06T06:08:09+00:00"},
		map[string]any{"type": "Bad", "status": "True", "lastTransitionTime": "s3cret"},
		"no condition",
	}

	return map[string]any{
		"x": map[string]any{
			"metadata": map[string]any{
				"annotations":       map[string]any{"example.io/status": "ok", "example.io": map[string]any{"a.b": "deep"}},
				"labels":            map[string]any{"hyperfleet.io/adapter": "a"},
				"creationTimestamp": "2026-05-06T06:00:00Z",
			},
			"items": []any{map[string]any{"n": int64(7)}}, "f": 1.5, "null": nil, "big": json.Number("9223372036854775809"),
		},
		"list":   conditions,
		"secret": "s3cret",
		"resources": map[string]any{"job": map[string]any{"statusFeedback": map[string]any{"values": []any{
			map[string]any{"name": "phase", "fieldValue": map[string]any{"type": "String", "string": "Active"}},
			map[string]any{"name": "n", "fieldValue": map[string]any{"type": "Integer", "integer": int64(3)}},
		}}}},
	}
}

func TestFunctions(t *testing.T) {
	t.Parallel()

	cases := map[string]any{
		`now()`:                             "2026-05-06T07:08:09Z",
		`timestamp(now()).toUnixTime()`:     int64(1778051289),
		`timestamp(now()).toUnixTime() - 9`: int64(1778051280),
		`timestamp(now()) + duration("10m") == timestamp("2026-05-06T07:18:09Z")`: true,
		`timestamp(now()) - duration("1h") < timestamp("2026-05-06T06:08:10Z")`:   true,
		`timestamp(now()) - timestamp("2026-05-06T07:00:00Z") > duration("8m")`:   true,
		`duration("1h") - duration("59m") + duration("1s") == duration("61s")`:    true,
		`toJson({"b": 1, "a": [true, null]})`:                                     `{"a":[true,null],"b":1}`,
		`toJson(timestamp(now()))`:                                                `"2026-05-06T07:08:09Z"`,
		`dig(x, "metadata.annotations.example.io/status")`:                        "ok",
		`dig(x.metadata.annotations, "example.io/status")`:                        "ok",
		`dig(x, "metadata.annotations.example.io.a.b")`:                           "deep",
		`dig(x, "items.0.n")`:                                                     int64(7),
		`dig(x, "no.such")`:                                                       nil,
		`dig(null, "a")`:                                                          nil,
		`dig(x, "no.such", "other")`:                                              "other",
		`dig(resources.?namespace, "a.b")`:                                        nil,
		`dig(x.metadata.annotations, "example.io/status") != "new"`:               true,
		`resources.?namespace.hasValue()`:                                         false,
		`resources.?namespace.metadata.orValue("none")`:                           "none",
		`conditionStatus(list, "Ready")`:                                          "True",
		`conditionStatus(list, "None")`:                                           "Unknown",
		`conditionStatus(null, "Ready")`:                                          "Unknown",
		`conditionStatus(x.?conditions, "Ready")`:                                 "Unknown",
		`conditionAge(list, "Ready")`:                                             int64(60),
		`conditionAge(list, "Kube")`:                                              int64(3600),
		`conditionAge(list, "None")`:                                              int64(-1),
		`stableFor(list, "Ready", 60)`:                                            true,
		`stableFor(list, "Ready", 61)`:                                            false,
		`stableFor(list, "Kube", 1)`:                                              false,
		`stableFor(list, "None", 0)`:                                              false,
		`statusFeedbackValue(resources.job.statusFeedback, "phase")`:              "Active",
		`statusFeedbackValue(resources.job.statusFeedback.values, "phase")`:       "Active",
		`statusFeedbackValue(resources.job.statusFeedback, "n")`:                  "3",
		`statusFeedbackValue(resources.job.statusFeedback, "none")`:               "",
		`triState(true, true)`:                                                    "True",
		`triState(false, true)`:                                                   "False",
		`triState(false, false)`:                                                  "Unknown",
		`[3, 1, 2].sort().map(n, n * 2)`:                                          []any{int64(2), int64(4), int64(6)},
		`"a-b".replace("-", ":").upperAscii()`:                                    "A:B",
		`optional.of(1)`:                                                          int64(1),
		`optional.none()`:                                                         nil,
		`{"a": x["null"]}`:                                                        map[string]any{"a": nil},
		`x.big`:                                                                   json.Number("9223372036854775809"),
		`dig(x, "big")`:                                                           json.Number("9223372036854775809"),
		`[{"a": x.big}][0]`:                                                       map[string]any{"a": json.Number("9223372036854775809")},
		`string(x.big) + toJson([x.big])`:                                         "9223372036854775809[9223372036854775809]",
		`x.big == dig(x, "big") && x.big != 1 && x.big != "9223372036854775809"`:  true,
		`quantity("1000") == quantity("1k")`:                                      true,
		`quantity("1000") != quantity("1Ki")`:                                     true,
		`quantity("1000m")`:                                                       "1",
		`{"pods": quantity("1000")}`:                                              map[string]any{"pods": "1k"},
		`quantity("1Gi").isGreaterThan(quantity("1G"))`:                           true,
		`isQuantity("many")`:                                                      false,
		`toJson(quantity("0.5"))`:                                                 `"500m"`,
	}

	e := newEnv(t, cel.Options{})

	for expression, want := range cases {
		t.Run(expression, func(t *testing.T) {
			t.Parallel()

			program, err := e.Compile(expression)
			must.Do(t, err)

			got, err := program.Eval(t.Context(), newVars())
			must.Do(t, err)

			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCompileErrors(t *testing.T) {
	t.Parallel()

	cases := map[string]string{
		`is_deletin`:                   "line 1, column 1: unknown variable or function is_deletin",
		`lst.size()`:                   "unknown variable or function lst (did you mean last?)",
		`conditionStatu(list, "a")`:    "unknown variable or function conditionStatu (did you mean conditionStatus?)",
		"true &&\n  nope":              "line 2, column 3: unknown variable or function nope",
		`x ==`:                         "line 1, column 5: Syntax error",
		`resources.jib.status || nope`: "line 1, column 10: unknown resources.jib (did you mean job?); line 1, column 25: unknown variable or function nope",
		`resources.?jib.hasValue()`:    "unknown resources.jib",
		`resources["jib"]`:             "unknown resources.jib",
		`has(resources.jib)`:           "unknown resources.jib",
		`1 + "a"`:                      "no matching overload",
		`duration("ten")`:              "invalid duration argument",
		`timestamp("now")`:             "invalid timestamp argument",
		`"a".matches("(")`:             "invalid matches argument",
		`http.get("http://a")`:         "unknown variable or function http",
		`   `:                          "the expression is empty",
		`[1].all(a, [1].all(b, [1].all(c, [1].all(d, [1].all(e, true)))))`: "comprehension",
		strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100):          "recursion",
		`"` + strings.Repeat("a", cel.MaxExpressionLength) + `"`:           "exceeds limit",
	}

	e := newEnv(t, cel.Options{})

	for expression, want := range cases {
		t.Run(expression[:min(20, len(expression))], func(t *testing.T) {
			t.Parallel()

			_, err := e.Compile(expression)

			var compile *cel.CompileError
			if !errors.As(err, &compile) || !strings.Contains(err.Error(), want) {
				t.Errorf("error: %v, want %s", err, want)
			}
		})
	}

	for _, expression := range []string{`"true"`, `1`, `[true]`, `now()`} {
		if _, err := e.CompileBool(expression); err == nil || !strings.Contains(err.Error(), "want a bool") {
			t.Errorf("gate %s: %v", expression, err)
		}
	}
}

func TestEvaluationErrorsContainNoValues(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		want  string
		cause error
	}{
		`x.nope`:                 {"no such key: x.nope; if the key can be absent, write .?nope", cel.ErrNoSuchKey},
		`x.metadata.nope.deeper`: {"1:16: no such key: x.metadata.nope; if the key can be absent, write .?nope", nil},
		`x.lastTransitionTime`: {"no such key: lastTransitionTime; conditions of the fleet API have last_transition_time; " +
			"if the key can be absent, write .?lastTransitionTime", nil},
		`x[secret]`:                 {"no such key", nil},
		`int(secret)`:               {"", nil},
		`timestamp(secret)`:         {"", nil},
		`duration(secret)`:          {"", nil},
		`"a".matches(secret + "(")`: {"", nil},
		`secret + 1`:                {"1:8: no such overload: + of string and int: convert one of them", nil},
		`dig(x.metadata.annotations, "example.io/rotated-at") < now()`: {"no such overload: < of null and string; " +
			`dig(x.metadata.annotations, "example.io/rotated-at") is absent: pass the value to use instead as dig's third argument`, nil},
		`x.big > 1`:                      {"no such overload: > of exactNumber and int", nil},
		`int(x.big)`:                     {"", nil},
		`x["null"] > 1`:                  {`no such overload: > of null and int; x["null"] is absent: compare with null first`, nil},
		`dig(x, "no").exists(c, c == 1)`: {`want a list or a map: a loop of null; dig(x, "no") is absent: pass the value`, nil},
		`[list[0]].filter(c, c.type == "Ready").all(c, c.last_transition_time < 5)`: {"no such overload: < of string and int: convert", nil},
		`list[9]`:                        {"index out of bounds", nil},
		`1 / (list.size() - 4) > 1`:      {"division by zero", nil},
		`conditionAge(list, "Bad")`:      {"conditionAge: the last transition of the condition is not a time", nil},
		`stableFor(list, "Bad", 1)`:      {"stableFor", nil},
		`conditionStatus(secret, "Bad")`: {"want a list", nil},
		`lists.range(1000000)`:           {"", nil},
		`secret`:                         {"yields string, want a bool", nil},
		`dig(x, "` + strings.Repeat("a.", 40) + `") == 1`: {"more than 32 parts", nil},
	}

	e := newEnv(t, cel.Options{Timeout: time.Minute})

	for expression, test := range cases {
		t.Run(expression, func(t *testing.T) {
			t.Parallel()

			program, err := e.Compile(expression)
			must.Do(t, err)

			_, err = program.EvalBool(t.Context(), newVars())

			var failed *cel.EvalError
			if !errors.As(err, &failed) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error: %v, want %s", err, test.want)
			}

			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error contains a value: %v", err)
			}

			if test.cause != nil && !errors.Is(err, test.cause) {
				t.Errorf("the error is not %v", test.cause)
			}
		})
	}
}

func TestCostLimit(t *testing.T) {
	t.Parallel()

	e := newEnv(t, cel.Options{Timeout: time.Minute, CostLimit: 5000})

	for expression, within := range map[string]bool{
		`lists.range(100).all(i, i >= 0)`:                              true,
		`lists.range(100).all(i, lists.range(100).all(j, i + j >= 0))`: false,
		`lists.range(100).map(i, lists.range(100)).size() > 0`:         false,
		`lists.range(100).all(i, toJson(lists.range(500)).size() > 0)`: false,
	} {
		program, err := e.Compile(expression)
		must.Do(t, err)

		if _, err := program.Eval(t.Context(), newVars()); errors.Is(err, cel.ErrCostLimit) == within {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

func TestTimeLimit(t *testing.T) {
	t.Parallel()

	program, err := newEnv(t, cel.Options{Timeout: time.Nanosecond}).Compile(`lists.range(1000).all(i, i >= 0)`)
	must.Do(t, err)

	if _, err := program.Eval(t.Context(), newVars()); !errors.Is(err, cel.ErrTimeout) {
		t.Errorf("error: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	program, err = newEnv(t, cel.Options{}).Compile(`lists.range(1000).all(i, i >= 0)`)
	must.Do(t, err)

	if _, err := program.Eval(ctx, newVars()); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
}

func TestProgramVariables(t *testing.T) {
	t.Parallel()

	e := newEnv(t, cel.Options{})

	program, err := e.Compile(`resources.?job.hasValue() && list.exists(c, c.type == x.kind) && has(resources.namespace.a)`)
	must.Do(t, err)

	if diff := cmp.Diff([]string{"list", "resources", "x"}, program.Variables()); diff != "" {
		t.Error(diff)
	}

	for expression, want := range map[string]any{`true`: true, `1 + 1 == 3`: false, `[1].exists(i, i == 1)`: true} {
		program, err := e.Compile(expression)
		must.Do(t, err)

		if got, ok := program.EvalConstant(); !ok || got != want {
			t.Errorf("%s: %v, %v", expression, got, ok)
		}
	}

	for _, expression := range []string{`x`, `now() > "2026"`, `1 / 0 > 1`} {
		program, err := e.Compile(expression)
		must.Do(t, err)

		if _, ok := program.EvalConstant(); ok {
			t.Errorf("%s counts as a constant", expression)
		}
	}
}

func TestExtend(t *testing.T) {
	t.Parallel()

	e, err := newEnv(t, cel.Options{}).Extend(cel.Variable{Name: "y"}, cel.Variable{Name: "resources"})
	must.Do(t, err)

	if _, err := e.Compile(`y && x && resources.any`); err != nil {
		t.Error(err)
	}
}

// TestSandbox compares the functions and macros that an expression can call with a reviewed list.
// Review new functions before you run the test with -update to write the list.
func TestSandbox(t *testing.T) {
	t.Parallel()

	got := strings.Join(newEnv(t, cel.Options{}).Functions(), "\n") + "\n"
	path := filepath.Join("testdata", "functions.txt")

	if *update {
		must.Do(t, os.MkdirAll("testdata", 0o750))

		must.Do(t, os.WriteFile(path, []byte(got), 0o600))
	}

	want, err := os.ReadFile(path)
	must.Do(t, err)

	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the functions that expressions can call have changed (-listed +current):\n%s", diff)
	}
}

func FuzzCompileAndEval(f *testing.F) {
	for _, seed := range []string{
		`dig(x, "a.b")`, `x.metadata.?labels.orValue({}).size() > 0`, `list.exists(c, c.type == secret)`, `int(secret)`,
		`toJson(x) + string(now())`, `timestamp(secret).toUnixTime() > 0`, `list.map(c, c).sortBy(c, c.status)`, `"%s".format([secret + "("]).matches(secret)`,
	} {
		f.Add(seed)
	}

	e := newEnv(f, cel.Options{CostLimit: 100_000})

	f.Fuzz(func(t *testing.T, expression string) {
		program, err := e.Compile(expression)
		if err != nil {
			return
		}

		if _, err := program.Eval(t.Context(), newVars()); err != nil && strings.Contains(err.Error(), "s3cret") && !strings.Contains(expression, "s3cret") {
			t.Errorf("the error contains a value: %v", err)
		}
	})
}
