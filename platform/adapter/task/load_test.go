// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/test/kubelet/volume"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// space is a valid resource. Cases extend it.
const space = `
params:
- {name: id, source: event.id}
- {name: is_deleting, source: {expression: 'dig(event, "deleted_time") != null'}}
resources:
- name: space
  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: "{{ .id }}"}}
  discovery: {by_name: "{{ .id }}"}
`

const job = `
- name: job
  manifest: {apiVersion: batch/v1, kind: Job, metadata: {name: "{{ .id }}", namespace: x}}
  discovery: {namespace: x, by_name: "{{ .id }}"}
`

const versions = `
- name: job
  manifest: {apiVersion: batch/v1, kind: Job, metadata: {name: '{{ .id }}-{{ .now | lower | replace ":" "-" }}', namespace: x}}
  discovery: {namespace: x, by_selectors: {label_selector: {hyperfleet.io/resource-name: job}}}
  retention: {historyLimit: 1}
`

func loadTask(text string, deployment *adapter.Deployment, files ...string) (*task.Task, error) {
	dir := fstest.MapFS{"task.yaml": {Data: []byte(text)}}
	for i := 0; i+1 < len(files); i += 2 {
		dir[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}

	return task.Load(dir, "task.yaml", deployment, withFixedClock())
}

func TestErrorsHavePositions(t *testing.T) {
	t.Parallel()

	deployment := &adapter.Deployment{Environment: []string{"REGION"}, Adapter: adapter.Identity{Name: "a"}}

	cases := []struct{ name, file, want string }{
		{"empty file", "# nothing\n", "task.yaml:1:1: the task file is empty"},
		{"typo in a path", "params: [{name: id, source: evnt.id}]", "task.yaml:1:29: params[0].source: unknown variable evnt (did you mean event? For a field of the event, write event.evnt.id)"},
		{"typo in a path without event", "params: [{name: id, source: idd}]", "params[0].source: unknown variable idd (did you mean id?"},
		{"unknown field", "param: []", "task.yaml:1:1: param: unknown field (did you mean params?)"},
		{"unknown field of a resource", space + "  lifecycl: {}", "task.yaml:9:3: resources[0].lifecycl: unknown field (did you mean lifecycle?)"},
		{"old precondition of another type", "preconditions: [{name: a, type: other, id: x, output_param: b}]", "preconditions[0].type: want type: hyperfleet_api"},
		{"old precondition without an id", "preconditions: [{name: a, type: hyperfleet_api, output_param: b}]", "preconditions[0]: type: hyperfleet_api needs id and output_param"},
		{"old precondition and new", "preconditions: [{name: a, type: hyperfleet_api, api_call: {method: GET, url: x}}]", "preconditions[0].type: api_call is set as well"},
		{"unknown function", space + "  when: {expression: 'nowish()'}", "task.yaml:9:29: resources[0].when.expression: unknown variable or function nowish"},
		{"unknown variable", space + "  when: {expression: is_deletin}", "unknown variable or function is_deletin (did you mean is_deleting?)"},
		{"unknown resource", space + "  when: {expression: resources.spce.x}", "task.yaml:9:31: resources[0].when.expression: unknown resources.spce (did you mean space?)"},
		{"expression over lines", space + "  when:\n    expression: >\n      is_deleting\n      && nope == 1", "task.yaml:12:10: resources[0].when.expression: unknown variable or function nope"},
		{"expression with escapes", space + `  when: {expression: "id == \"a\" && nope"}`, "task.yaml:9:22: resources[0].when.expression: unknown variable or function nope, at 1:14 of the expression"},
		{"unknown adapter field", space + "  when: {expression: adapter.nam == 'x'}", "unknown adapter.nam"},
		{"gate that is no bool", space + "  when: {expression: '\"yes\"'}", "yields string, want a bool"},
		{"gate without an expression", space + "  lifecycle: {apply: {when: {}}}", "the expression is empty"},
		{"syntax", space + "  when: {expression: 'id =='}", "Syntax error"},
		{"template variable", space + "  when: {expression: 'true'}\n  lifecycle: {patch: [{when: {expression: 'true'}, document: {a: '{{ .idd }}'}}]}", "unknown variable idd (did you mean id?)"},
		{"template function", strings.Replace(space, "{{ .id }}", "{{ .id | shout }}", 1), `invalid template: line 1: function "shout" not defined`},
		{"template syntax", strings.Replace(space, "{{ .id }}", "{{ .id", 1), "invalid template: line 1: unclosed action"},
		{"template resource", strings.Replace(space, "{{ .id }}", "{{ .resources.nope }}", 1), "unknown resources.nope"},

		{"both gates true", space + "  lifecycle: {detach: {when: {expression: 'true'}}, delete: {when: {expression: '1 == 1'}}}", "detach and delete are both always true"},
		{"both gates the same", space + "  lifecycle: {detach: {when: {expression: 'is_deleting'}}, delete: {when: {expression: ' is_deleting '}}}", "resources[0].lifecycle.delete: detach and delete have the same expression (detach always takes precedence"},
		{"unknown policy", space + "  lifecycle: {delete: {when: {expression: is_deleting}, propagationPolicy: background}}", `unknown "background" (did you mean Background?)`},
		{"owner declared later", strings.Replace(space, "\nresources:", "\nresources:"+job+"  owner: {resource: space}", 1), "resource space is defined later (define the owner before the resources that it owns)"},
		{"owner unknown", space + job + "  owner: {resource: none}", `unknown resource "none"`},
		{"owner of itself", space + job + "  owner: {resource: job}", "can't own itself"},
		{"owner on maestro", space + job + "  owner: {resource: space}\n  transport: {client: maestro, maestro: {target_cluster: c}}", "a ManifestWork can't have an owner"},
		{"owner is on maestro", space + "  transport: {client: maestro, maestro: {target_cluster: c}}" + job + "  owner: {resource: space}", "resource space has transport maestro"},
		{"retention without a varying name", space + strings.Replace(versions, `{{ .id }}-{{ .now | lower | replace ":" "-" }}`, "job", 1), "resources[1].manifest.metadata.name: with retention, the name has to vary"},
		{"retention by name", space + strings.Replace(versions, "by_selectors: {label_selector: {hyperfleet.io/resource-name: job}}", "by_name: x", 1), "retention needs by_selectors"},
		{"retention of less than none", space + strings.Replace(versions, "historyLimit: 1", "historyLimit: -1, ttl: 2d", 1), `"2d" is not a duration`},
		{"method of a time", space + "  when: {expression: 'true'}\n  lifecycle: {patch: [{when: {expression: 'true'}, document: {a: '{{ now.Unix }}', b: '{{ .now.Unix }}'}}]}", "now has no field Unix (for another format, write {{ now | date"},
		{"retention expression", space + strings.Replace(versions, "historyLimit: 1", "expression: itm.x", 1), "unknown variable or function itm"},
		{"item elsewhere", space + "  when: {expression: item.x}", "unknown variable or function item"},
		{"missing discovery", strings.Replace(space, "  discovery: {by_name: \"{{ .id }}\"}", "", 1), "resources[0].discovery: a resource needs discovery"},
		{"discovery twice", strings.Replace(space, "by_name:", "by_selectors: {label_selector: {a: b}}, by_name:", 1), "want exactly one of by_name and by_selectors"},
		{"discovery by nothing", strings.Replace(space, "by_name: \"{{ .id }}\"", "namespace: x", 1), "want exactly one of by_name and by_selectors"},
		{"recreate without manifest", "resources:\n- name: a\n  discovery: {api_version: v1, kind: Pod, by_name: x}\n  lifecycle: {recreate: {when: {expression: 'true'}}}", "no manifest to recreate the object from"},
		{"neither manifest nor patch", "resources:\n- name: a\n  discovery: {api_version: v1, kind: Pod, by_name: x}", "want a manifest, or lifecycle.patch"},
		{"patch-only of no kind", "resources:\n- name: a\n  discovery: {by_name: x}\n  lifecycle: {patch: [{when: {expression: 'true'}, document: {a: b}}]}", "discovery needs api_version and kind"},
		{"empty patch", space + "  lifecycle: {patch: [{when: {expression: 'true'}}]}", "a patch needs a document"},
		{"manifest without a name", strings.Replace(space, `metadata: {name: "{{ .id }}"}`, "metadata: {generateName: x}", 1), "a manifest needs metadata.name (the adapter can't find an object whose name"},
		{"manifest of no kind", strings.Replace(space, "kind: Namespace, ", "", 1), "a manifest needs kind"},
		{"block that is no object", strings.Replace(space, `{apiVersion: v1, kind: Namespace, metadata: {name: "{{ .id }}"}}`, "|\n    just text", 1), "it is not a YAML object"},

		{"by name in any namespace", space + strings.Replace(job, "{namespace: x, by_name", `{namespace: "*", by_name`, 1), `resources[1].discovery.namespace: the manifest has a namespace, but discovery by name has none (write namespace: "x")`},
		{"by name in no namespace", space + strings.Replace(job, "{namespace: x, by_name", "{by_name", 1), "discovery by name has none"},

		{"names twice", space + strings.Replace(job, "name: job", "name: space", 1), "the name space is used twice in resources"},
		{"nested name twice", space + "  transport: {client: maestro, maestro: {target_cluster: c}}\n  nested_discoveries: [{name: space, discovery: {by_name: x}}]", "resources[0].nested_discoveries[0].name: the name space is used twice"},
		{"nested on kubernetes", space + "  nested_discoveries: [{name: inner, discovery: {by_name: x}}]", "only a ManifestWork"},
		{"bad name", space + strings.Replace(job, "name: job", "name: Job-1", 1), `"Job-1" is not a valid resource name`},
		{"alias and name", space + "  alias: other", "resources[0].alias: name is set as well (alias is a deprecated form of name: remove it)"},
		{"orphan and detach", space + "  lifecycle: {detach: {when: {expression: 'is_deleting'}}, orphan: {when: {expression: 'false'}}}", "lifecycle.detach is set as well"},
		{"create and apply", space + "  lifecycle: {apply: {when: {expression: 'true'}}, create: {when: {expression: 'true'}}}", "lifecycle.apply is set as well"},
		{"recreate_on_change and recreate", space + "  recreate_on_change: true\n  lifecycle: {recreate: {when: {expression: 'true'}}}", "lifecycle.recreate is set as well"},
		{"maestro without a target", space + "  transport: {client: maestro}", "transport maestro needs maestro.target_cluster"},
		{"maestro not deployed", space + "  transport: {client: maestro, maestro: {target_cluster: c}}", "the deployment configuration has no clients.maestro"},
		{"unknown transport", space + "  transport: {client: kubernets}", `unknown "kubernets" (did you mean kubernetes?)`},

		{"param without a source", "params: [{name: a}]", "a param needs a source"},
		{"field of an answer", "preconditions: [{name: p, api_call: {method: GET, url: x}, capture: [{name: c, expression: 'status.conditions'}]}]", "unknown variable or function status (to read a field of the response, write response.status)"},
		{"manifest of another folder", strings.Replace(space, `{apiVersion: v1, kind: Namespace, metadata: {name: "{{ .id }}"}}`, "{ref: /etc/adapter/x.yaml}", 1), "(this path needs a task file in /etc/adapter; here write ref: x.yaml)"},
		{"param of a taken name", "params: [{name: resources, source: event.a}]", "the name resources is reserved"},
		{"param that is no name", "params: [{name: a-b, source: event.a}]", `"a-b" is not a valid name`},
		{"param of a later one", "params: [{name: a, source: b.x}, {name: b, source: event.b}]", "b is not available here, because it is a param that is defined later"},
		{"expression of a later one", "params: [{name: a, source: {expression: b}}, {name: b, source: event.b}]", "b is not available here"},
		{"template of a later one", "params: [{name: a, source: {api_call: {method: GET, url: '{{ .b }}'}}}, {name: b, source: event.b}]", "variable b is not available here, because it is a param that is defined later"},
		{"resources in a param", "params: [{name: a, source: {expression: 'resources.?space.hasValue()'}}]" + strings.Replace(space, "params:\n- {name: id, source: event.id}\n- {name: is_deleting, source: {expression: 'dig(event, \"deleted_time\") != null'}}", "", 1), "resources is not available here, because the resources phase runs later"},
		{"two sources", "params: [{name: a, source: {expression: '1', file: {path: x}}}]", "exactly one of api_call, expression and file"},
		{"unknown source", "params: [{name: a, source: {exec: rm}}]", "params[0].source.exec: unknown field"},
		{"source of no kind", "params: [{name: a, source: 5}]", "want a path"},
		{"bad path", "params: [{name: a, source: event..id}]", `"event..id" is not a path`},
		{"unknown type", "params: [{name: a, source: event.id, type: integer}]", `unknown "integer" (one of string, int`},
		{"undeclared environment", "params: [{name: a, source: env.HOME}]", "params[0].source: unknown env.HOME"},
		{"undeclared environment in CEL", "params: [{name: a, source: {expression: env.HOME}}]", "unknown env.HOME"},
		{"undeclared environment in a template", strings.Replace(space, "{{ .id }}", "{{ .env.HOME }}", 1), "unknown env.HOME"},
		{"unknown configuration", "params: [{name: a, source: config.adapter.nam}]", "the deployment configuration has no adapter.nam"},
		{"bad method", "params: [{name: a, source: {api_call: {method: FETCH, url: x}}}]", `unknown "FETCH"`},
		{"call without url", "params: [{name: a, source: {api_call: {method: GET}}}]", "a call needs a url"},
		{"bad wait", "params: [{name: a, source: {api_call: {method: GET, url: x, timeout: soon, retry_attempts: 0, retry_backoff: no}}}]", `"soon" is not a duration`},
		{"bad header", "params: [{name: a, source: {api_call: {method: GET, url: x, headers: [{name: 'a b', value: x}]}}}]", `"a b" is not a valid header name`},

		{"empty precondition", "preconditions: [{name: a}]", "at least one of api_call, conditions and expression"},
		{"capture without a call", "preconditions: [{name: a, expression: 'true', capture: [{name: b, field: x}]}]", "there is no api_call to capture values from"},
		{"capture of two", "preconditions: [{name: a, api_call: {method: GET, url: x}, capture: [{name: b, field: x, expression: response.x}]}]", "exactly one of field and expression"},
		{"unknown operator", "preconditions: [{name: a, conditions: [{field: event.x, operator: equal, value: 1}]}]", `unknown "equal" (did you mean equals?)`},
		{"condition on nothing known", "preconditions: [{name: a, conditions: [{field: x, operator: exists}]}]", "unknown variable x"},
		{"condition without a value", "preconditions: [{name: a, conditions: [{field: event.x, operator: equals}]}]", "equals needs a value"},
		{"condition without values", "preconditions: [{name: a, conditions: [{field: event.x, operator: in, value: 1}]}]", "in needs values, a list"},
		{"condition with a value too many", "preconditions: [{name: a, conditions: [{field: event.x, operator: exists, value: 1}]}]", "exists takes no value"},

		{"payload of two", "post: {payloads: [{name: a, build: {}, build_ref: x}]}", "exactly one of build and build_ref"},
		{"payload of a param's name", "params: [{name: a, source: event.a}]\npost: {payloads: [{name: a, build: {}}]}", "the name a is used twice: it is already the name of a param"},
		{"field of nothing known", "post: {payloads: [{name: a, build: {x: {field: nope.x}}}]}", "post.payloads[0].build.x.field: unknown variable nope"},
		{"expression of nothing known", "post: {payloads: [{name: a, build: {x: {expression: nope}}}]}", "unknown variable or function nope"},
		{"action of nothing", "post: {post_actions: [{name: a}]}", "want an api_call, a log, or both"},
		{"unknown payload", "post: {post_actions: [{name: a, api_call: {method: PUT, url: x, body: '{{ .p }}'}}]}", "unknown variable p"},
		{"payload in a payload", "post: {payloads: [{name: p, build: {}}, {name: q, build: {a: '{{ .p }}'}}]}", "variable p is not available here"},
		{"level of a line", "post: {post_actions: [{name: a, log: {message: x, level: loud}}]}", `unknown "loud"`},

		{"file outside", strings.Replace(space, `{apiVersion: v1, kind: Namespace, metadata: {name: "{{ .id }}"}}`, "{ref: ../x.yaml}", 1), "resources[0].manifest.ref: ../x.yaml is outside the folder of the task file"},
		{"file that is not there", "post: {payloads: [{name: a, build_ref: none.yaml}]}", "post.payloads[0].build_ref: read none.yaml: file does not exist"},
		{"bad file", "post: {payloads: [{name: a, build_ref: bad.yaml}]}", "bad.yaml:2:6: x.y: invalid template"},
		{"bad manifest file", strings.Replace(space, `{apiVersion: v1, kind: Namespace, metadata: {name: "{{ .id }}"}}`, "{ref: bad.yaml}", 1), "bad.yaml:1:1: a manifest needs apiVersion"},
		{"manifest file that is no YAML", strings.Replace(space, `{apiVersion: v1, kind: Namespace, metadata: {name: "{{ .id }}"}}`, "{ref: worse.yaml}", 1), "worse.yaml:1:"},
	}

	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			_, err := loadTask(test.file, deployment, "bad.yaml", "x:\n  y: '{{ .nope'\n", "worse.yaml", "a: [")

			var problems strictyaml.Problems
			if !errors.As(err, &problems) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("problems:\n%v\nwant %s", err, test.want)
			}

			for _, problem := range problems {
				if problem.Line == 0 {
					t.Errorf("problem without a position: %s", problem)
				}
			}
		})
	}
}

// TestAllErrorsAreReported checks that one error has the problems of all phases, in the order of the file.
func TestAllErrorsAreReported(t *testing.T) {
	t.Parallel()

	_, err := loadTask(`params:
- {name: a, source: {expression: nope}}
preconditions:
- {name: p, expression: "1"}
resources:
- {name: r, manifest: 5}
post:
  post_actions: [{name: x}]
unknown: 1
`, nil)

	var problems strictyaml.Problems
	if !errors.As(err, &problems) {
		t.Fatal(err)
	}

	var lines []int
	for _, problem := range problems {
		lines = append(lines, problem.Line)
	}

	for _, want := range []int{2, 4, 6, 8, 9} {
		if !slices.Contains(lines, want) {
			t.Errorf("no problem in line %d:\n%v", want, err)
		}
	}

	if !slices.IsSorted(lines) {
		t.Errorf("problems are not in the order of the file: %v", lines)
	}
}

// TestValidTaskFiles has valid variants of the cases above.
func TestValidTaskFiles(t *testing.T) {
	t.Parallel()

	deployment := &adapter.Deployment{
		Environment: []string{"REGION"}, Clients: adapter.Clients{Maestro: &adapter.Maestro{}},
	}

	cases := map[string]string{
		"patch-only":            "resources:\n- name: a\n  discovery: {api_version: v1, kind: Pod, by_name: x}\n  lifecycle: {patch: [{when: {expression: 'resources.?a.hasValue()'}, document: {a: null}}]}",
		"patch-only on maestro": "resources:\n- name: a\n  transport: {client: maestro, maestro: {target_cluster: c}}\n  discovery: {by_name: x}\n  lifecycle: {patch: [{when: {expression: 'resources.?a.hasValue()'}, document: {a: b}}]}",
		"foreground deletion":   space + "  lifecycle: {delete: {when: {expression: is_deleting}, propagationPolicy: Foreground}}",
		"sibling that is later": space + "  when: {expression: '!resources.?job.hasValue()'}" + job,
		"nested":                space + "  transport: {client: maestro, maestro: {target_cluster: '{{ .id }}'}}\n  nested_discoveries: [{name: inner, discovery: {by_name: x}}]\n  when: {expression: '!resources.?inner.hasValue()'}",
		"retention":             space + versions + "  owner: {resource: space}\n",
		"retention expression":  space + strings.Replace(versions, "historyLimit: 1", `expression: "itemIndex > 2 && item.status.phase == 'x' && items.size() > 3"`, 1),
		"env and config":        "params: [{name: a, source: env.REGION}, {name: b, source: config.clients.broker.topic}, {name: c, source: {expression: env.REGION + config.adapter.name}}, {name: d, source: deep.in.event}, {name: e, source: d.x}]",
		"answers":               "preconditions: [{name: cluster, api_call: {method: GET, url: clusters/x}, capture: [{name: tier, field: spec.tier}, {name: n, expression: response.items.size()}], conditions: [{field: tier, operator: in, values: [a]}, {field: cluster.id, operator: exists}], expression: n > 0, log: {message: '{{ .tier }}'}}]",
		"payloads in actions":   "post: {payloads: [{name: p, build: {a: {field: event.id, default: x}, b: {expression: adapter.executionStatus}, c: [1, '{{ .event.id }}']}}], post_actions: [{name: a, when: {expression: '!adapter.resourcesSkipped'}, api_call: {method: PUT, url: x, body: '{{ .p }}'}}]}",
		"range and with":        strings.Replace(space, "{{ .id }}", "{{ range $i, $v := .event.list }}{{ .name }}{{ $v.name }}{{ $.id }}{{ end }}{{ with .event }}{{ .any }}{{ else }}{{ .id }}{{ end }}", 1),
	}

	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			loaded, err := loadTask(text, deployment)
			must.Do(t, err)

			if len(loaded.Warnings) > 0 {
				t.Errorf("warnings: %v", loaded.Warnings)
			}
		})
	}
}

// TestConditionsWithoutObservedGenerationWarn checks that expressions get a warning if they use a condition
// for which the work agent sets no observedGeneration.
func TestConditionsWithoutObservedGenerationWarn(t *testing.T) {
	t.Parallel()

	work := space + `
- name: work
  transport: {client: maestro, maestro: {target_cluster: c}}
  manifest: {apiVersion: work.open-cluster-management.io/v1, kind: ManifestWork, metadata: {name: app}}
  discovery: {by_name: app}
  nested_discoveries: [{name: inner, discovery: {by_name: web}}]
  when: {expression: 'EXPRESSION'}
`

	for expression, warned := range map[string]bool{
		`resources.inner.conditions.exists(c, c.type == "Available" && c.observedGeneration == 2)`:              true,
		`resources.inner.conditions.exists(c, c.type == "Applied" && c.observedGeneration == 2)`:                false,
		`resources.work.status.resourceStatus.manifests.all(m, m.conditions.all(c, c.observedGeneration == 2))`: true,
		`resources.work.status.conditions.exists(c, c.type == "Available" && c.observedGeneration == 2)`:        false,
		`resources.space.status.observedGeneration == 2`:                                                        false,
	} {
		loaded, err := loadTask(strings.Replace(work, "EXPRESSION", expression, 1), nil)
		must.Do(t, err)

		if got := strings.Contains(fmt.Sprint(loaded.Warnings), "have no observedGeneration"); got != warned {
			t.Errorf("%s: warnings %v", expression, loaded.Warnings)
		}
	}
}

// TestRepeatedParams checks that the last definition counts, with a warning.
func TestRepeatedParams(t *testing.T) {
	t.Parallel()

	loaded, err := loadTask("params: [{name: a, source: event.a}, {name: b, source: event.b}, {name: a, source: event.c}]", nil)
	must.Do(t, err)

	if len(loaded.Params) != 2 || loaded.Params[1].Name != "a" || loaded.Params[1].Path.Rest != "c" {
		t.Errorf("params: %+v", loaded.Params)
	}

	if got := fmt.Sprint(loaded.Warnings); !strings.Contains(got, "task.yaml:1:17") || !strings.Contains(got, "the param a is defined again below") {
		t.Errorf("warnings: %s", got)
	}
}

// TestDigest checks that the digest covers the files that the task file refers to.
func TestDigest(t *testing.T) {
	t.Parallel()

	digest := func(files ...string) string {
		loaded, err := task.Load(fstest.MapFS{
			"task.yaml": {Data: []byte("resources:\n- name: space\n  manifest: {ref: m.yaml}\n  discovery: {by_name: x}\n" + files[0])},
			"m.yaml":    {Data: []byte("{apiVersion: v1, kind: Namespace, metadata: {name: x}}" + files[1])},
		}, "task.yaml", nil)
		if err != nil {
			t.Fatal(err)
		}

		return loaded.Digest
	}

	same, again, file, manifest := digest("", ""), digest("", ""), digest("# x", ""), digest("", "# x")
	if same == "" || same != again || file == same || manifest == same || file == manifest {
		t.Errorf("digests %s, %s, %s, %s", same, again, file, manifest)
	}
}

// TestMutableNamesWarn checks that a name gets a warning if it depends on a field of the resource that can change, and
// that the role then has the permission to delete the object of the old name.
func TestMutableNamesWarn(t *testing.T) {
	t.Parallel()

	const text = `
params:
- {name: id, source: event.id}
preconditions:
- name: cluster
  api_call: {method: GET, url: "clusters/{{ .id }}"}
  capture:
  - {name: clusterName, field: name}
  - {name: tier, field: spec.tier}
  - {name: zone, expression: 'response.?labels.?zone.orValue("")'}
resources:
- name: config
  manifest: {apiVersion: v1, kind: KIND, metadata: {name: "NAME", namespace: "SPACE"}}
  discovery: {namespace: "SPACE", by_name: "NAME"}
`
	for name, tc := range map[string]struct{ kind, name, space, want string }{
		"constant":       {"ConfigMap", "web-{{ .id }}-{{ .clusterName }}-{{ .cluster.name }}", "x", ""},
		"capture":        {"ConfigMap", "web-{{ .tier }}", "x", "task.yaml:13:64"},
		"expression":     {"ConfigMap", "web", "{{ .zone }}", "labels of the resource"},
		"response":       {"ConfigMap", "web-{{ .cluster.spec.tier }}", "x", "spec of the resource"},
		"kind":           {"'{{ .tier }}'", "web", "x", "spec of the resource"},
		"not in a field": {"ConfigMap", "spec.labels", "x", ""},
	} {
		loaded, err := loadTask(strings.NewReplacer("KIND", tc.kind, "NAME", tc.name, "SPACE", tc.space).Replace(text), nil)
		if err != nil {
			t.Fatal(err)
		}

		got := fmt.Sprint(loaded.Warnings)
		if (tc.want == "") != (len(loaded.Warnings) == 0) || !strings.Contains(got, tc.want) {
			t.Errorf("%s: warnings %s, want %q", name, got, tc.want)
		}

		if rules, err := loaded.RequiredRules("kubernetes"); err == nil && slices.Contains(rules[0].Verbs, "delete") != (tc.want != "") {
			t.Errorf("%s: verbs %v", name, rules[0].Verbs)
		}
	}
}

// TestInvalidNamesWarn checks that names that are always invalid get a warning before an event arrives.
func TestInvalidNamesWarn(t *testing.T) {
	t.Parallel()

	for name, warned := range map[string]bool{
		"{{ .id }}-x":                                  false,
		"{{ .id | upper }}":                            false, // it is converted to lower case
		"{{ .id }}_x":                                  true,
		"{{ .event.id }}-{{ .now | lower }}":           true,
		`{{ .id }}-{{ .now | replace ":" "-" }}`:       false,
		`{{ .id }}{{ .now | lower | replace ":" "" }}`: false,
		"{{ .event.spec.name }}":                       false,
	} {
		loaded, err := loadTask(strings.Replace(space, `metadata: {name: "{{ .id }}"}`, "metadata: {name: '"+name+"'}", 1), nil)
		must.Do(t, err)

		if got := strings.Contains(fmt.Sprint(loaded.Warnings), "which is not a valid name"); got != warned {
			t.Errorf("%s: warnings %v", name, loaded.Warnings)
		}
	}

	role := strings.NewReplacer("apiVersion: v1, kind: Namespace", "apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole",
		`metadata: {name: "{{ .id }}"}`, `metadata: {name: "system:{{ .id }}"}`).Replace(space)
	if loaded, err := loadTask(role, nil); err != nil || len(loaded.Warnings) > 0 {
		t.Errorf("a role: %v, %v", loaded, err)
	}
}

// The value * of discovery.namespace means no namespace.
func TestAnyNamespace(t *testing.T) {
	t.Parallel()

	for _, file := range []string{
		strings.Replace(space, "{by_name", `{namespace: "*", by_name`, 1),
		space + strings.Replace(versions, "namespace: x, by_sel", `namespace: "*", by_sel`, 1),
	} {
		loaded, err := loadTask(file, nil)
		must.Do(t, err)

		if one := loaded.Resources[len(loaded.Resources)-1]; one.Discovery.Namespace != nil {
			t.Errorf("%s is discovered in namespace %s, want none", one.Name, one.Discovery.Namespace)
		}
	}
}

// TestDeprecatedNames checks that deprecated names still work, with a warning.
func TestDeprecatedNames(t *testing.T) {
	t.Parallel()

	loaded, err := loadTask(strings.Replace(space, "name: space", "alias: space", 1)+
		"  recreate_on_change: true\n  lifecycle: {orphan: {when: {expression: is_deleting}}, create: {when: {expression: id == 'a'}}}", nil)
	must.Do(t, err)

	r := loaded.Resources[0]
	if r.Name != "space" || r.Detach == nil || len(loaded.Warnings) != 4 {
		t.Errorf("resource %+v\n%v", r, loaded.Warnings)
	}

	live := func(generation string) map[string]any {
		return map[string]any{"space": map[string]any{"metadata": map[string]any{"annotations": map[string]any{adapter.AnnotationGeneration: generation}}}}
	}

	for _, test := range []struct {
		vars            map[string]any
		apply, recreate bool
	}{
		{map[string]any{"id": "a", "resources": map[string]any{}}, true, true},
		{map[string]any{"id": "b", "resources": map[string]any{}}, false, true},
		{map[string]any{"id": "b", "resources": live("2")}, true, false},
		{map[string]any{"id": "b", "resources": live("1")}, true, true},
	} {
		test.vars["event"] = map[string]any{"generation": int64(2)}

		if got, err := r.Apply.EvalBool(t.Context(), test.vars); err != nil || got != test.apply {
			t.Errorf("apply gate with %v: %v, %v", test.vars, got, err)
		}

		if got, err := r.Recreate.EvalBool(t.Context(), test.vars); err != nil || got != test.recreate {
			t.Errorf("recreate gate with %v: %v, %v", test.vars, got, err)
		}
	}
}

// TestFilesOutsideTheFolderAreNotRead tries paths and symbolic links.
func TestFilesOutsideTheFolderAreNotRead(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	outside := filepath.Join(dir, "secret.yaml")
	inside := filepath.Join(dir, "adapter")

	write := func(path, text string) {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}

	must.Do(t, os.MkdirAll(filepath.Join(inside, "parts"), 0o700))

	write(outside, "a: b\n")
	write(filepath.Join(inside, "parts", "build.yaml"), "a: '{{ .event.id }}'\n")

	for link, target := range map[string]string{"out.yaml": outside, "up.yaml": "../secret.yaml", "in.yaml": "parts/build.yaml"} {
		must.Do(t, os.Symlink(target, filepath.Join(inside, link)))
	}

	for ref, want := range map[string]string{
		"out.yaml": "escapes", "up.yaml": "escapes", "../secret.yaml": "is outside the folder", "parts": "is not a regular file",
		"parts/build.yaml": "", "in.yaml": "",
	} {
		path := filepath.Join(inside, "task.yaml")
		write(path, "post: {payloads: [{name: a, build_ref: "+ref+"}]}\n")

		_, err := task.LoadFile(path, nil)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", ref, err, want)
		}
	}
}

// TestMountedConfigMaps checks that the symbolic links in a volume of a ConfigMap are followed.
func TestMountedConfigMaps(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	volume.Mount(t, dir, map[string]string{
		"task.yaml": "post: {payloads: [{name: a, build_ref: build.yaml}]}\n", "build.yaml": "a: b\n",
	})

	if _, err := task.LoadFile(filepath.Join(dir, "task.yaml"), nil); err != nil {
		t.Error(err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(space + job + versions)
	f.Add("post: {payloads: [{name: a, build: {x: {field: a, expression: b}}}]}")
	f.Add("resources: [{name: a, manifest: '{{ define \"x\" }}{{ template \"x\" }}{{ end }}{{ template \"x\" }}'}]")
	f.Fuzz(func(t *testing.T, text string) {
		_, err := loadTask(text, nil)

		var problems strictyaml.Problems
		if err != nil && !errors.As(err, &problems) {
			t.Errorf("error of another type: %v", err)
		}
	})
}
