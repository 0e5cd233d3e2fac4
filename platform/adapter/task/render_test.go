// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// renderText renders a text as a value of a payload.
func renderText(t *testing.T, text string, vars map[string]any) (any, error) {
	t.Helper()

	loaded, err := loadTask("params:\n- {name: x, source: event.x}\n- {name: n, source: event.n}\n- {name: absent, source: event.y}\n"+
		"post:\n  payloads:\n  - name: p\n    build:\n      v: |-\n        "+text+"\n", nil)
	must.Do(t, err)

	built, err := loaded.Payloads[0].Build.Render(t.Context(), vars)
	if err != nil {
		return nil, err
	}

	return built.(map[string]any)["v"], nil
}

func newVars() map[string]any {
	return map[string]any{
		"x": "a-b:c", "n": int64(1234567), "absent": nil, "resources": map[string]any{},
		"event": map[string]any{"x": "a", "f": float64(1234567), "list": []any{"p", "q"}, "s": "s3cret"},
	}
}

// TestPlainTemplates checks that a template that only prints variables has the same result as one with parentheses, which the
// template engine renders.
func TestPlainTemplates(t *testing.T) {
	t.Parallel()

	vars := newVars()
	event, _ := vars["event"].(map[string]any)

	maps.Copy(event, map[string]any{
		"text": "{{ .x }}", "empty": "", "n": int64(-7), "big": float64(1 << 60), "half": 0.5, "yes": true, "null": nil,
		"number": json.Number("1e400"), "broken": "a\xff", "map": map[string]any{"a": "b", "Unix": "c"}, "long": strings.Repeat("x", 3<<20),
	})

	for _, path := range []string{
		".x", ".n", ".absent", ".now", ".event.text", ".event.empty", ".event.n", ".event.big", ".event.half", ".event.yes", ".event.null",
		".event.number", ".event.broken", ".event.map", ".event.map.a", ".event.map.Unix", ".event.map.none", ".event.text.a", ".event.list",
		".event.none", ".event.long",
	} {
		got, err := renderText(t, "<{{ "+path+" }}{{ "+path+" }}>", vars)
		want, wantErr := renderText(t, "<{{ ("+path+") }}{{ ("+path+") }}>", vars)

		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (wantErr == nil) {
			t.Errorf("%s: %v, want %v (-want +got):\n%.200s", path, err, wantErr, diff)
		}
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()

	cases := map[string]string{
		`{{ .x }}`:                 "a-b:c",
		`{{ .n }}`:                 "1234567",
		`{{ .event.f }} {{ 1.5 }}`: "1234567 1.5",
		`{{ if .absent }}{{ .absent }}{{ else }}none{{ end }}{{ with $x := .x }}{{ $x }}{{ end }}`: "nonea-b:c",
		`{{ define "n" }}{{ . }}{{ end }}{{ template "n" .x }}`:                                    "a-b:c",
		`{{ .event.f | string }}`:                                      "1234567",
		`{{ now }}`:                                                    "2026-05-06T07:08:09Z",
		`{{ .now }}`:                                                   "2026-05-06T07:08:09Z",
		`{{ .now | replace ":" "-" }}`:                                 "2026-05-06T07-08-09Z",
		`{{ now | replace ":" "-" | lower }}`:                          "2026-05-06t07-08-09z",
		`{{ replace .now ":" "-" }}`:                                   "2026-05-06T07-08-09Z",
		`{{ replace .x "-" "" | upper }}`:                              "AB:C",
		`{{ now | date "2006-01-02" }}`:                                "2026-05-06",
		`{{ dateFormat .now "15.04" }}`:                                "07.08",
		`{{ "2026-01-02T03:04:05Z" | date "Jan" }}`:                    "Jan",
		`{{ trimPrefix .x "a-" }}`:                                     "b:c",
		`{{ .x | trimPrefix "a-" }}`:                                   "b:c",
		`{{ .x | trimSuffix ":c" }}`:                                   "a-b",
		`{{ if contains .x "-" }}y{{ end }}`:                           "y",
		`{{ if .x | contains "-" }}y{{ end }}`:                         "y",
		`{{ if hasPrefix .x "a" }}y{{ end }}`:                          "y",
		`{{ if .x | hasSuffix "c" }}y{{ end }}`:                        "y",
		`{{ "  a b " | trim | title }}`:                                "A B",
		`{{ .x | quote }}`:                                             `"a-b:c"`,
		`{{ .absent | default "d" }}`:                                  "d",
		`{{ .x | default "d" }}`:                                       "a-b:c",
		`{{ int "7" }}{{ int64 7.9 }}{{ float "1.5" }}{{ float64 2 }}`: "771.52",
		`{{ range $i, $v := .event.list }}{{ $i }}{{ $v }}{{ end }}{{ range .absent }}x{{ else }}none{{ end }}`: "0p1qnone",
		`{{ range .event.list }}{{ . }};{{ end }}`:                                                              "p;q;",
		`no template`: "no template",
	}

	for text, want := range cases {
		t.Run(text, func(t *testing.T) {
			t.Parallel()

			if got, err := renderText(t, text, newVars()); err != nil || got != want {
				t.Errorf("%v, %v, want %s", got, err, want)
			}
		})
	}
}

// TestFieldsInCapitals checks fields that could be methods. Templates call no methods.
func TestFieldsInCapitals(t *testing.T) {
	t.Parallel()

	cases := map[string]string{
		`{{ .event.Named }} {{ with .event }}{{ .Named }}{{ .Deep.In.it }}{{ end }}`: "c cd",
	}

	known := newVars()
	known["event"] = map[string]any{"list": []any{"p", "q"}, "Named": "c", "Deep": map[string]any{"In": map[string]any{"it": "d"}}}

	for text, want := range cases {
		if got, err := renderText(t, text, known); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %s", text, got, err, want)
		}
	}

	fail := map[string]string{
		`{{ $t := now }}{{ $t.Unix }}`:              "can't evaluate field Unix",
		`{{ with .event }}{{ .Nope }}{{ end }}`:     `map has no entry for key "Nope"`,
		`{{ .event.Nope }}`:                         `map has no entry for key "Nope"`,
		`{{ .event.Named.Nope }}`:                   "can't evaluate field Nope",
		`{{ with .event.list }}{{ .Len }}{{ end }}`: "can't evaluate field Len",
	}

	for text, want := range fail {
		if got, err := renderText(t, text, known); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %s", text, got, err, want)
		}
	}
}

func TestTemplateErrorsContainNoValues(t *testing.T) {
	t.Parallel()

	cases := map[string]string{
		`{{ $x := printf "%0100000d" 1 }}{{ $y := replace $x "0" $x }}`:            "more than 8388608 bytes of text",
		`{{ $x := "0" }}` + strings.Repeat(`{{ $x = $x | replace "0" "00" }}`, 60): "more than 8388608 bytes of text",
		`{{ $x := "'" }}` + strings.Repeat(`{{ $x = quote $x }}`, 60):              "more than 8388608 bytes of text",
		`{{ range 9223372036854775807 }}{{ end }}`:                                 "range needs a list or a map",
		`{{ range $i := .n }}{{ end }}`:                                            "range needs a list or a map",
		`{{ .event.nope }}`:                                                        `map has no entry for key "nope"`,
		`{{ .absent }}`:                                                            "has no value",
		`{{ .x.y }}`:                                                               "can't evaluate field y",
		`{{ int 1e19 }}`:                                                           "not a whole number",
		`{{ int .event.s }}`:                                                       "not a whole number",
		`{{ float .event.s }}`:                                                     "not a number",
		`{{ date .event.s "x" }}`:                                                  "want a time",
		`{{ index .event.list 9 }}`:                                                "out of range",
		`{{ define "r" }}{{ template "r" }}{{ end }}{{ template "r" }}`:            "more than 100 deep",
		`{{ range .event.list }}{{ printf "%1000000s" "x" }}{{ printf "%1000000s" "x" }}{{ printf "%1000000s" "x" }}{{ end }}`: "more than 8388608 bytes of text",
	}

	for text, want := range cases {
		t.Run(text, func(t *testing.T) {
			t.Parallel()

			_, err := renderText(t, text, newVars())
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("error: %v, want %s", err, want)
			}
		})
	}
}

// TestRenderedValuesStayData checks that a value cannot change the structure of its manifest.
func TestRenderedValuesStayData(t *testing.T) {
	t.Parallel()

	loaded, err := loadTask(`
params: [{name: evil, source: event.x}, {name: n, source: event.n}]
resources:
- name: a
  manifest:
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: a, labels: null, annotations: {"{{ .n }}/key": "{{ .evil }}"}}
    data: {a: "{{ .evil }}", n: "{{ .n }}", number: 3, list: ["{{ .n }}", null]}
  discovery: {by_name: a}
- name: b
  manifest: |
    apiVersion: v1
    kind: Pod
    metadata: {name: b}
    spec: {replicas: {{ .n }}}
  discovery: {by_name: b}
`, nil)
	must.Do(t, err)

	const evil = "x\"\n  kind: Secret\nb: {c: d}"

	vars := map[string]any{"evil": evil, "n": int64(5)}

	object, err := loaded.Resources[0].Manifest.RenderObject(t.Context(), vars)
	must.Do(t, err)

	want := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "a", "annotations": map[string]any{"5/key": evil}},
		"data":     map[string]any{"a": evil, "n": "5", "number": int64(3), "list": []any{"5", nil}},
	}
	if diff := cmp.Diff(want, object); diff != "" {
		t.Error(diff)
	}

	object, err = loaded.Resources[1].Manifest.RenderObject(t.Context(), vars)
	must.Do(t, err)

	if diff := cmp.Diff(map[string]any{"replicas": int64(5)}, object["spec"]); diff != "" {
		t.Error(diff)
	}

	vars["n"] = evil
	object, err = loaded.Resources[1].Manifest.RenderObject(t.Context(), vars)
	must.Do(t, err)

	if diff := cmp.Diff(map[string]any{"replicas": evil}, object["spec"]); diff != "" {
		t.Error(diff)
	}
}

func TestManifestsInFiles(t *testing.T) {
	t.Parallel()

	for name, text := range map[string]string{
		"tree":  "apiVersion: v1\nkind: Pod\nmetadata: {name: '{{ .id }}'}\nspec: {n: 2}\n",
		"block": "apiVersion: v1\nkind: Pod\nmetadata: {name: '{{ .id }}'}\n{{ if .id }}\nspec: {n: 2}\n{{ end }}\n",
	} {
		loaded, err := loadTask("params: [{name: id, source: event.id}]\nresources:\n- name: a\n  manifest: {ref: parts/pod.yaml}\n"+
			"  discovery: {by_name: a}\n", nil, "parts/pod.yaml", text)
		must.Do(t, err)

		object, err := loaded.Resources[0].Manifest.RenderObject(t.Context(), map[string]any{"id": "x"})
		must.Do(t, err)

		want := map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "x"}, "spec": map[string]any{"n": int64(2)},
		}
		if diff := cmp.Diff(want, object); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}

		if _, err := loaded.Resources[0].Manifest.RenderObject(t.Context(), map[string]any{"id": ""}); err == nil {
			t.Errorf("%s: an object without a name is rendered", name)
		}
	}
}

func TestPayloads(t *testing.T) {
	t.Parallel()

	loaded, err := loadTask(`
params: [{name: cluster, source: event.cluster}]
post:
  payloads:
  - name: status
    build:
      tier: {field: cluster.spec.tier, default: none}
      phase: {field: cluster.status.phase, default: unknown}
      first: {expression: "cluster.list[0]", default: 0}
      plain: {field: keeps, other: "{{ .cluster.id }}"}
      at: "{{ .now }}"
  - {name: unused, build: {}}
  post_actions:
  - name: report
    api_call: {method: PUT, url: "clusters/{{ .cluster.id }}/statuses", body: "{{ .status }}", headers: [{name: X-A, value: "{{ .cluster.id }}"}]}
  - name: say
    log: {message: done}
`, nil)
	must.Do(t, err)

	vars := map[string]any{"cluster": map[string]any{"id": "c", "spec": map[string]any{"tier": "big"}, "list": []any{}}}

	built, err := loaded.Payloads[0].Build.Render(t.Context(), vars)
	must.Do(t, err)

	want := map[string]any{
		"tier": "big", "phase": "unknown", "first": int64(0), "plain": map[string]any{"field": "keeps", "other": "c"},
		"at": "2026-05-06T07:08:09Z",
	}
	if diff := cmp.Diff(want, built); diff != "" {
		t.Error(diff)
	}

	if diff := cmp.Diff([]string{"status"}, loaded.Actions[0].Payloads); diff != "" || loaded.Actions[1].Payloads != nil {
		t.Errorf("payloads of actions: %s", diff)
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()

	vars := map[string]any{"v": map[string]any{
		"big": int64(9007199254740993), "huge": json.Number("9223372036854775809"),
		"s": "abc", "n": int64(5), "f": 5.0, "l": []any{"a", int64(1)}, "t": "2026-01-02T00:00:00Z", "null": nil, "m": map[string]any{"k": int64(1)},
	}}

	cases := []struct {
		field, operator string
		value           any
		values          []any
		want, fails     bool
	}{
		{field: "s", operator: "equals", value: "abc", want: true},
		{field: "n", operator: "equals", value: 5.0, want: true},
		{field: "n", operator: "equals", value: "5"},
		{field: "big", operator: "equals", value: int64(9007199254740992)},
		{field: "big", operator: "greaterThan", value: int64(9007199254740992), want: true},
		{field: "huge", operator: "equals", value: json.Number("9223372036854775809.0"), want: true},
		{field: "huge", operator: "greaterThan", value: int64(9223372036854775807), want: true},
		{field: "huge", operator: "equals", value: json.Number("1e9999")},
		{field: "none", operator: "equals", value: "x"},
		{field: "s", operator: "notEquals", value: "x", want: true},
		{field: "s", operator: "in", values: []any{"x", "abc"}, want: true},
		{field: "s", operator: "notIn", values: []any{"x"}, want: true},
		{field: "s", operator: "contains", value: "b", want: true},
		{field: "l", operator: "contains", value: int64(1), want: true},
		{field: "m", operator: "contains", value: "k", want: true},
		{field: "none", operator: "contains", value: "k"},
		{field: "n", operator: "contains", value: "k", fails: true},
		{field: "s", operator: "contains", value: int64(1), fails: true},
		{field: "n", operator: "greaterThan", value: int64(4), want: true},
		{field: "f", operator: "greaterThanOrEqual", value: int64(5), want: true},
		{field: "n", operator: "lessThan", value: int64(5)},
		{field: "n", operator: "lessThanOrEqual", value: int64(5), want: true},
		{field: "t", operator: "lessThan", value: "2026-01-02T02:00:00+01:00", want: true},
		{field: "s", operator: "lessThan", value: "abd", want: true},
		{field: "s", operator: "lessThan", value: int64(1), fails: true},
		{field: "none", operator: "lessThan", value: int64(1), fails: true},
		{field: "s", operator: "exists", want: true},
		{field: "null", operator: "exists"},
		{field: "null", operator: "notExists", want: true},
	}

	for _, test := range cases {
		condition := task.Condition{Field: task.Path{Variable: "v", Rest: test.field}, Operator: test.operator, Value: test.value, Values: test.values}

		got, err := condition.IsMet(vars)
		if got != test.want || (err != nil) != test.fails {
			t.Errorf("%s %s %v %v: %v, %v", test.field, test.operator, test.value, test.values, got, err)
		}
	}
}

func TestPathsAndTypes(t *testing.T) {
	t.Parallel()

	vars := map[string]any{"event": map[string]any{"a.b": "dotted", "l": []any{map[string]any{"x": true}}}}
	for text, want := range map[string]any{"a.b": "dotted", "l.0.x": true, "none": nil} {
		path := task.Path{Variable: "event", Rest: text}
		if got, ok := path.Lookup(vars); got != want || ok != (want != nil) {
			t.Errorf("%s: %v, %v", path, got, ok)
		}
	}

	for _, test := range []struct {
		kind  string
		value any
		want  any
		fails bool
	}{
		{"int", " 7 ", int64(7), false}, {"int64", int64(7), int64(7), false}, {"int", "s3cret", nil, true}, {"float", "1.5", 1.5, false},
		{"bool", "true", true, false}, {"bool", "s3cret", nil, true}, {"string", "x", "x", false}, {"", "x", "x", false},
	} {
		got, err := task.Convert(test.value, test.kind)
		if got != test.want || (err != nil) != test.fails || (err != nil && strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%v as %s: %v, %v", test.value, test.kind, got, err)
		}
	}
}

// FuzzValuesStayValues checks that the value of a variable becomes exactly one string.
func FuzzValuesStayValues(f *testing.F) {
	for _, seed := range []string{"a", "x\"\n  kind: Secret", "{{ .now }}", "*a", "!!int 3", "\x00", "<no value>"} {
		f.Add(seed)
	}

	loaded, err := loadTask("params: [{name: v, source: event.v}]\nresources:\n- name: a\n"+
		"  manifest: {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: 'x{{ .v }}y'}}\n  discovery: {by_name: a}\n", nil)
	if err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, value string) {
		object, err := loaded.Resources[0].Manifest.RenderObject(t.Context(), map[string]any{"v": value})
		want := map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}, "data": map[string]any{"a": "x" + value + "y"},
		}
		if diff := cmp.Diff(want, object); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}
