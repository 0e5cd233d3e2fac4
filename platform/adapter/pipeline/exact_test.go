// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/platform/adapter/dryrun"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// exactTask sends a value of a response, of the event and of a file in every way that a task file has.
const exactTask = `params:
- {name: id, source: event.id}
- {name: fromEvent, source: event.number}
- {name: file, source: {file: {path: FILE}}, required: true}
- {name: answer, source: {api_call: {method: GET, url: "http://other.example/answer"}}}
preconditions:
- name: again
  api_call: {method: GET, url: "http://other.example/answer"}
  capture:
  - {name: field, field: n}
  - {name: expression, expression: response.n}
post:
  payloads:
  - name: report
    build:
      field: {field: field}
      expression: {expression: expression}
      param: {field: answer.n}
      event: {expression: fromEvent}
      literal: NUMBER
      text: "{{ .field }},{{ .expression }},{{ .answer.n }},{{ .fromEvent }},{{ .file }}"
  post_actions:
  - name: report
    api_call: {method: POST, url: "http://other.example/report", body: '{"report": {{ .report }}, "n": {{ .field }}}'}
`

// TestValuesStayExact checks that numbers of other servers' responses, of events, of files and of the task file arrive as
// they are, and that a document that can't be kept is refused with the place.
func TestValuesStayExact(t *testing.T) {
	t.Parallel()

	folder := t.TempDir()
	file := filepath.Join(folder, "value")

	run := func(answer, number, content string) (body, failure string) {
		must.Do(t, os.WriteFile(file, []byte(content), 0o600))

		literal := number
		if strings.HasPrefix(number, "{") || number == "1E400" { // YAML has no such number, but a string
			literal = "1"
		}

		taskFile := strings.NewReplacer("FILE", file, "NUMBER", literal).Replace(exactTask)
		must.Do(t, os.WriteFile(filepath.Join(folder, "task.yaml"), []byte(taskFile), 0o600))

		options := dryRunOptions(t, filepath.Join(folder, "task.yaml"))
		options.Event = []byte(strings.Replace(string(options.Event), `"generation": 3`, `"generation": 3, "number": `+number, 1))
		options.Responses = []byte("responses:\n- match: {urlPattern: .*/report}\n  responses: [{statusCode: 200}]\n" +
			"- match: {urlPattern: .*/answer}\n  responses: [{statusCode: 200, body: '" + answer + "'}]\n")

		report, _ := runDryRun(t, options, false)
		if calls := report.Calls; report.Result.Error == "" && len(calls) > 0 {
			body = calls[len(calls)-1].Body
		}

		return body, report.Result.Error
	}

	for _, n := range []string{"9007199254740993", "9223372036854775809", "-9223372036854775808", "0.1000000000000000000000001", "1E400"} {
		want := `{"report": {"event":N,"expression":N,"field":N,"literal":N,"param":N,"text":"N,N,N,N,s"}, "n": N}`
		if n == "1E400" {
			want = strings.Replace(want, `"literal":N`, `"literal":1`, 1)
		}

		if body, failure := run(`{"n": `+n+`}`, n, "s"); body != strings.ReplaceAll(want, "N", n) || failure != "" {
			t.Errorf("%s: body %s, error %q", n, body, failure)
		}
	}

	for name, test := range map[string]struct{ answer, number, content, want string }{
		"equal keys of a response": {`{"n": {"a": 1, "a": 2}}`, "1", "s", "/n/a is listed more than once"},
		"two documents":            {`{"n": 1} {"n": 2}`, "1", "s", "send one document"},
		"half a character":         {`{"n": "\ud800"}`, "1", "s", "/n has text with half of a surrogate pair"},
		"equal keys of an event":   {`{"n": 1}`, `{"b": 1, "b": 2}`, "s", "/number/b is listed more than once"},
		"bytes of a file":          {`{"n": 1}`, "1", "a\xff", "param file: the value is not valid UTF-8"},
	} {
		if body, failure := run(test.answer, test.number, test.content); body != "" || !strings.Contains(failure, test.want) {
			t.Errorf("%s: body %q, error %q, want %q", name, body, failure, test.want)
		}
	}
}

// TestOtherBytesOfTheEnvironment checks that a variable that JSON can't have is refused with its name.
func TestOtherBytesOfTheEnvironment(t *testing.T) {
	t.Parallel()

	options := dryRunOptions(t, "task.yaml")
	options.Env = map[string]string{"REGION": "a\xff"}

	if _, err := dryrun.Run(t.Context(), options); err == nil || !strings.Contains(err.Error(), "environment variable REGION") {
		t.Errorf("error %v", err)
	}
}
