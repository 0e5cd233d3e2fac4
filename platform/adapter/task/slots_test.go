// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/test/must"
)

// blockTask returns a task whose only manifest is a block string with these lines after the name.
func blockTask(lines ...string) string {
	head := []string{"apiVersion: v1", "kind: Pod", "metadata:", "  name: p"}

	return "params: [{name: v, source: event.v}, {name: w, source: event.w, default: two}]\nresources:\n- name: b\n" +
		"  discovery: {by_name: p}\n  manifest: |\n    " + strings.Join(append(head, lines...), "\n    ") + "\n"
}

// TestValuesOfBlocksStayValues checks that a value is one scalar or a part of one, whatever it contains, and that an
// unquoted value has the type that YAML gives to its text.
func TestValuesOfBlocksStayValues(t *testing.T) {
	t.Parallel()

	const evil = "x\n  hostNetwork: true\n  containers: [] # \"'"

	cases := map[string]struct {
		line  string
		value any
		want  any
	}{
		"a value with newlines":           {"spec: {{ .v }}", evil, evil},
		"in double quotes":                {`spec: "a {{ .v }} b"`, evil, "a " + evil + " b"},
		"in single quotes":                {"spec: 'a {{ .v }}'", evil, "a " + evil},
		"in a literal":                    {"spec: |-\n      a {{ .v }}\n      b", evil, "a " + evil + "\nb"},
		"in a folded text":                {"spec: >-\n      a {{ .v }}\n      b", evil, "a " + evil + " b"},
		"in a list":                       {"spec: [a, {{ .v }}]", "b, c", []any{"a", "b, c"}},
		"in a list of lines":              {"spec:\n    - {{ .v }}", "- b", []any{"- b"}},
		"in a key":                        {`spec: {"{{ .v }}": 1}`, "a: 1, b", map[string]any{"a: 1, b": int64(1)}},
		"in a comment":                    {"spec: 1 # {{ .v }}", evil, int64(1)},
		"in a loop":                       {"spec: [{{ range .v }}{{ . }},{{ end }}]", []any{"a]", "b, c"}, []any{"a]", "b, c"}},
		"in a condition":                  {"spec: {{ if .v }}{{ .v }}{{ else }}{}{{ end }}", evil, evil},
		"in another template":             {`{{ define "n" }}{{ . }}{{ end }}spec: {{ template "n" .v }}`, evil, evil},
		"of a function":                   {"spec: {{ .v | upper }}", "a: b", "A: B"},
		"in quotes of a function":         {"spec: {{ .v | quote }}", "a\"b: c", "a\"b: c"},
		"in quotes of printf":             {`spec: {{ printf "%q" .v }}`, "a\nb: c", "a\nb: c"},
		"in quotes of a function in text": {"spec: |-\n      a={{ .v | quote }}", "b\"; c", `a="b\"; c"`},
		"a whole number":                  {"spec: {{ .v }}", int64(9007199254740993), int64(9007199254740993)},
		"a number":                        {"spec: {{ .v }}", 1.5, 1.5},
		"a bool":                          {"spec: {{ .v }}", true, true},
		"a text that is a number":         {"spec: {{ .v }}", "5", int64(5)},
		"a quoted text that is a number":  {`spec: "{{ .v }}"`, "5", "5"},
		"two values that are a number":    {"spec: 8{{ .v }}", "05", int64(805)},
		"no text":                         {"spec: {{ .v }}", "", nil},
		"an alias":                        {"spec: {{ .v }}", "*a", "*a"},
		"a tag":                           {"spec: {{ .v }}", "!!int 5", "!!int 5"},
		"a comment":                       {"spec: {{ .v }}", "a # b", "a # b"},
		"an anchor":                       {"spec: {{ .v }}", "&a b", "&a b"},
		"a mapping":                       {"spec: {{ .v }}", "{a: b}", "{a: b}"},
		"a text of a slot":                {"spec: {{ .v }}", "\ue0000:eA\ue001", "\ue0000:eA\ue001"},
	}

	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			loaded, err := loadTask(blockTask(test.line), nil)
			must.Do(t, err)

			object, err := loaded.Resources[0].Manifest.RenderObject(t.Context(), map[string]any{"v": test.value, "w": "two"})
			must.Do(t, err)

			want := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "p"}, "spec": test.want}
			if diff := cmp.Diff(want, object); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestValuesThatChangeTheStructure checks that validate names the line of a value that would have to be more than one
// scalar, and that such a value is refused with the name of its variable.
func TestValuesThatChangeTheStructure(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		line, value string
		// load is the error of the file, warn a warning, and run the error of the event.
		load, warn, run string
	}{
		"lines of a mapping":      {line: "spec: {a: b}\n    {{ .v }}", load: "task.yaml:11:5: resources[0].manifest: invalid manifest: "},
		"a value of its own line": {line: "spec:\n      {{ .v }}", value: "a: 1\nb: 2", warn: "task.yaml:11:5: resources[0].manifest: {{.v}} has a line of its own", run: "line 6: the value of {{.v}} is a mapping or a list"},
		"a list of its own line":  {line: "spec:\n      {{ .v }}", value: "[a]", warn: "task.yaml:11:5: ", run: "{{.v}} is a mapping or a list"},
		"a tag":                   {line: "spec: !{{ .v }} a", load: "task.yaml:10:5: resources[0].manifest: invalid manifest: "},
		"a tag in a condition":    {line: "spec: {{ if .v }}!{{ .v }}{{ end }} a", value: "b", run: "{{.v}}"},
		"two equal keys":          {line: `spec: {"{{ .v }}": 1, a: 2}`, value: "a", run: "two keys of line 5 are equal"},
		"lines in a condition":    {line: "spec: {a: b}\n    {{ if .v }}{{ .v }}{{ end }}", value: "a: 1", run: "line 6, near {{.v}}"},
		"the whole":               {line: "", value: "", load: "it is not a YAML object"},
		"no kind":                 {line: "kind: {{ .v }}", load: "duplicate key kind"},
		"a reserved character":    {line: "spec: \ue000{{ .v }}", load: "U+E000"},
	}

	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			text := blockTask(test.line)
			if name == "the whole" {
				head, _, _ := strings.Cut(text, "manifest: |")
				text = head + "manifest: '{{ .v }}'\n"
			}

			loaded, err := loadTask(text, nil)
			if test.load != "" {
				if err == nil || !strings.Contains(err.Error(), test.load) {
					t.Errorf("error %v, want %s", err, test.load)
				}

				return
			}

			must.Do(t, err)

			if got := loaded.Warnings.Error(); !strings.Contains(got, test.warn) || test.warn == "" && len(loaded.Warnings) > 0 {
				t.Errorf("warnings %q, want %q", got, test.warn)
			}

			_, err = loaded.Resources[0].Manifest.RenderObject(t.Context(), map[string]any{"v": test.value, "w": "two"})
			if err == nil || !strings.Contains(err.Error(), test.run) {
				t.Errorf("error %v, want %s", err, test.run)
			}
		})
	}
}

// callTask returns a task with one call.
func callTask(url, rest string) string {
	return "params: [{name: v, source: event.v}, {name: w, source: event.w, default: two}]\npost:\n  payloads: [{name: doc, build: {a: \"{{ .v }}\"}}]\n" +
		"  post_actions:\n  - name: call\n    api_call:\n      method: POST\n      url: '" + url + "'\n" + rest
}

// TestBodies checks that a value stays inside its string of a JSON body, that a value outside of strings is exactly one
// JSON value, and that the text of another content type is sent as it is.
func TestBodies(t *testing.T) {
	t.Parallel()

	const evil = "a\",\"admin\":true,\"b\":\"\n<é>"

	cases := map[string]struct {
		body, contentType string
		value             any
		want, load, run   string
	}{
		"in a string":             {body: `{"a": "x {{ .v }}"}`, value: evil, want: `{"a": "x a\",\"admin\":true,\"b\":\"\n<é>"}`},
		"in a key":                {body: `{"{{ .v }}": 1}`, value: evil, want: `{"a\",\"admin\":true,\"b\":\"\n<é>": 1}`},
		"a number":                {body: `{"a": {{ .v }}}`, value: int64(9007199254740993), want: `{"a": 9007199254740993}`},
		"a payload":               {body: `{{ .doc }}`, want: `{"a":"doc"}`},
		"a payload in a field":    {body: `{"a": {{ .doc }}}`, want: `{"a": {"a":"doc"}}`},
		"quoted by a function":    {body: `{"a": {{ .v | quote }}}`, value: `b"c`, want: `{"a": "b\"c"}`},
		"nothing":                 {body: `{{ .v | default "" }}`, value: "", want: ""},
		"two values for one":      {body: `{"a": {{ .v }}}`, value: `1, "admin": true`, run: "the value of {{.v}} is not one JSON value"},
		"a text without quotes":   {body: `{"a": {{ .v }}}`, value: "b", run: "the value of {{.v}} is not one JSON value"},
		"a condition":             {body: `{ {{ if .v }}"a": "{{ .v }}"{{ end }} }`, value: evil, want: `{ "a": "a\",\"admin\":true,\"b\":\"\n<é>" }`},
		"not JSON":                {body: `a={{ .v }}`, load: "the body is not JSON"},
		"not JSON in a condition": {body: `{{ if .v }}a={{ .v }}{{ end }}`, value: "b", run: "the body is not JSON"},
		"two equal keys":          {body: `{"{{ .v }}": 1, "a": 2}`, value: "a", run: "/a is listed more than once"},
		"a form":                  {body: `a={{ .v }}`, contentType: "application/x-www-form-urlencoded", value: "b", want: "a=b"},
		"a merge patch":           {body: `{"a": "{{ .v }}"}`, contentType: "application/merge-patch+json", value: `"`, want: `{"a": "\""}`},
	}

	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			rest := "      body: |-\n        " + test.body + "\n"
			if test.contentType != "" {
				rest += "      headers: [{name: content-type, value: " + test.contentType + "}]\n"
			}

			loaded, err := loadTask(callTask("clusters/a", rest), nil)
			if test.load != "" {
				if err == nil || !strings.Contains(err.Error(), test.load) || !strings.Contains(err.Error(), "task.yaml:10:9: ") {
					t.Errorf("error %v, want %s", err, test.load)
				}

				return
			}

			must.Do(t, err)

			vars := map[string]any{"v": test.value, "w": "two", "doc": `{"a":"doc"}`}

			got, err := loaded.Actions[0].APICall.Body.Render(vars, test.contentType)
			if test.run != "" {
				if err == nil || !strings.Contains(err.Error(), test.run) {
					t.Errorf("%s, %v, want error %s", got, err, test.run)
				}

				return
			}

			must.Do(t, err)

			if got != test.want {
				t.Errorf("body %s, want %s", got, test.want)
			}
		})
	}
}

// TestURLs checks that a value in a URL is a part of its segment, of its host or of its query's value, except at the
// start of the URL.
func TestURLs(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		url, value, want, run string
	}{
		"a segment":                    {url: "clusters/{{ .v }}/statuses", value: "a.b:c", want: "clusters/a.b:c/statuses"},
		"two segments":                 {url: "clusters/{{ .v }}", value: "a/b", run: "the value of {{.v}} has the character /"},
		"a query":                      {url: "clusters/{{ .v }}", value: "a?force=true", run: "the value of {{.v}} has the character ?"},
		"the folder above":             {url: "clusters/{{ .v }}/x", value: "..", run: "the value of {{.v}}"},
		"a blank":                      {url: "clusters/{{ .v }}", value: "a b", run: "the value of {{.v}} has the character"},
		"an escaped blank":             {url: "clusters/{{ .v | urlquery }}", value: "a/b", want: "clusters/a%2Fb"},
		"a start":                      {url: "{{ .v }}/x", value: "http://h:1/a?b", want: "http://h:1/a?b/x"},
		"a start of two values":        {url: "{{ .v }}{{ .w }}/x", value: "http://h/", want: "http://h/two/x"},
		"a host":                       {url: "http://{{ .v }}/x", value: "h:80", want: "http://h:80/x"},
		"a user":                       {url: "http://{{ .v }}.example.com/x", value: "a@evil#", run: "the value of {{.v}} has the character @"},
		"a value of a query":           {url: "clusters?search={{ .v }}", value: "name='a'", want: "clusters?search=name='a'"},
		"two values of a query":        {url: "clusters?search={{ .v }}", value: "a&page=2", run: "the value of {{.v}} has the character &"},
		"an escaped value of a query":  {url: "clusters?search={{ .v | urlquery }}", value: "a&b=c d", want: "clusters?search=a%26b%3Dc+d"},
		"an empty segment":             {url: "clusters/{{ .v }}", value: "", run: "the value of {{.v}} is empty"},
		"an empty value of a query":    {url: "clusters?a={{ .v }}", value: "", want: "clusters?a="},
		"a line":                       {url: "clusters/{{ .v }}", value: "a\nb", run: "the value of {{.v}} has the character"},
		"a part of a segment is empty": {url: "clusters/a{{ .v }}", value: "", want: "clusters/a"},
	}

	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			loaded, err := loadTask(callTask(test.url, ""), nil)
			must.Do(t, err)

			got, err := loaded.Actions[0].APICall.URL.Render(map[string]any{"v": test.value, "w": "two"})
			if test.run != "" {
				if err == nil || !strings.Contains(err.Error(), test.run) || len(test.value) > 2 && strings.Contains(err.Error(), test.value) {
					t.Errorf("%s, %v, want error %s", got, err, test.run)
				}

				return
			}

			must.Do(t, err)

			if got != test.want {
				t.Errorf("URL %s, want %s", got, test.want)
			}
		})
	}
}

// TestValuesOfDiscovery checks that a value selects one name, namespace or label value.
func TestValuesOfDiscovery(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ discovery, value, want string }{
		"a name":                   {"{by_name: 'x-{{ .v }}'}", "a", ""},
		"a name of RBAC":           {"{by_name: '{{ .v }}'}", "system:A", ""},
		"a path":                   {"{by_name: 'x-{{ .v }}'}", "a/status", `discovery.by_name: the value of "x-{{ .v }}" is not valid`},
		"no name":                  {"{by_name: '{{ .v }}'}", "", "discovery.by_name: the value of"},
		"a namespace":              {"{namespace: '{{ .v }}', by_name: x}", "../a", "discovery.namespace: the value of"},
		"no namespace":             {"{namespace: '{{ .v }}', by_name: x}", "", ""},
		"a label":                  {"{by_selectors: {label_selector: {a: '{{ .v }}'}}}", "b", ""},
		"another label's selector": {"{by_selectors: {label_selector: {a: '{{ .v }}'}}}", "b,c!=d", "discovery.by_selectors.label_selector a: the value of"},
	}

	for name, test := range cases {
		loaded, err := loadTask("params: [{name: v, source: event.v}]\nresources:\n- name: a\n  discovery: "+test.discovery+
			"\n  manifest: {apiVersion: v1, kind: Pod, metadata: {name: a}}\n", nil)
		must.Do(t, err)

		_, _, _, err = loaded.Resources[0].Discovery.Render(map[string]any{"v": test.value})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

// FuzzValuesOfBlocksStayValues checks that the value of a variable becomes one string of a block string.
func FuzzValuesOfBlocksStayValues(f *testing.F) {
	for _, seed := range []string{"a", "x\"\n  kind: Secret", "{{ .now }}", "*a", "!!int 3", "\x00", "\ue000", "a: b"} {
		f.Add(seed)
	}

	loaded, err := loadTask(blockTask(`spec: {a: "x{{ .v }}", b: 'x{{ .v }}', c: x{{ .v }}, "k{{ .v }}": d}`, "# {{ .v }}"), nil)
	if err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, value string) {
		object, err := loaded.Resources[0].Manifest.RenderObject(t.Context(), map[string]any{"v": value})
		want := map[string]any{"a": "x" + value, "b": "x" + value, "c": "x" + value, "k" + value: "d"}

		if diff := cmp.Diff(want, object["spec"]); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	})
}
