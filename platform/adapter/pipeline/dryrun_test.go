// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/dryrun"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/test/must"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func newDemoDeployment() *adapter.Deployment {
	out := task.NewDeploymentSpec(task.FileOptional).Default
	out.Adapter, out.Environment = adapter.Identity{Name: "demo", Version: "1"}, []string{"REGION"}
	out.Clients.HyperFleetAPI.BaseURL = "http://fleet.example"

	return &out
}

func readDryRun(t *testing.T, name string) []byte {
	t.Helper()

	if name == "" {
		return nil
	}

	data, err := os.ReadFile(filepath.Join("..", "dryrun", "testdata", name))
	must.Do(t, err)

	return data
}

func dryRunOptions(t *testing.T, taskFile string) dryrun.Options {
	t.Helper()

	clock := testclock.NewFakePassiveClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))

	if !filepath.IsAbs(taskFile) {
		taskFile = filepath.Join("..", "dryrun", "testdata", taskFile)
	}

	loaded, err := task.LoadFile(taskFile, newDemoDeployment(), task.WithClock(clock))
	must.Do(t, err)

	return dryrun.Options{
		Task: loaded, Deployment: newDemoDeployment(), Version: "1.2.3", Event: readDryRun(t, "event.json"),
		Env: map[string]string{"REGION": "north"}, Clock: clock,
	}
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()

	path := filepath.Join("..", "dryrun", "testdata", "golden", name)
	if *update {
		must.Do(t, os.WriteFile(path, got, 0o600))
	}

	want, err := os.ReadFile(path)
	must.Do(t, err)

	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// runDryRun runs a dry run, and returns its report as a value and as text.
func runDryRun(t *testing.T, options dryrun.Options, verbose bool) (*dryrun.Report, string) {
	t.Helper()

	report, err := dryrun.Run(t.Context(), options)
	must.Do(t, err)

	var text bytes.Buffer

	must.Do(t, report.Text(&text, verbose))

	return report, text.String()
}

func TestDryRunGolden(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		responses, discovery string
		verbose              bool
	}{
		"created":  {responses: "responses.json", discovery: "created.json", verbose: true},
		"existing": {responses: "responses.json", discovery: "existing.json"},
		"deleting": {responses: "deleting.json", discovery: "existing.json"},
		"stranger": {responses: "responses.json", discovery: "stranger.json"},
		"noanswer": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			options := dryRunOptions(t, "task.yaml")
			options.Responses, options.Discovery = readDryRun(t, tc.responses), readDryRun(t, tc.discovery)

			report, text := runDryRun(t, options, tc.verbose)
			compareGolden(t, name+".txt", []byte(text))

			var encoded bytes.Buffer

			encoder := json.NewEncoder(&encoded)
			encoder.SetEscapeHTML(false)
			encoder.SetIndent("", "  ")
			must.Do(t, encoder.Encode(report))
			compareGolden(t, name+".json", encoded.Bytes())
		})
	}
}

// Upstream's discovery file has the objects by their names.
func TestDryRunAcceptsUpstreamObjects(t *testing.T) {
	t.Parallel()

	var ours map[string]json.RawMessage
	if err := json.Unmarshal(readDryRun(t, "existing.json"), &ours); err != nil || len(ours) != 1 {
		t.Fatal(err, ours)
	}

	options := dryRunOptions(t, "task.yaml")
	options.Responses, options.Discovery = readDryRun(t, "responses.json"), readDryRun(t, "existing.json")
	_, want := runDryRun(t, options, true)

	options.Discovery = ours["existing"]
	if _, got := runDryRun(t, options, true); got != want {
		t.Error(cmp.Diff(want, got))
	}
}

// TestDryRunAcceptsUpstreamFixtures checks events and responses in the form of upstream's fixtures: another word at the
// end of the type, a generation that is a text in the response, and a pattern for a part of the path.
func TestDryRunAcceptsUpstreamFixtures(t *testing.T) {
	t.Parallel()

	taskFile := filepath.Join(t.TempDir(), "task.yaml")
	text := strings.Replace(string(readDryRun(t, "task.yaml")), "method: PUT", "method: PATCH", 1)
	must.Do(t, os.WriteFile(taskFile, []byte(text), 0o600))

	options := dryRunOptions(t, taskFile)
	options.Event = []byte(strings.Replace(string(options.Event), "cluster.reconcile", "cluster.updated", 1))
	options.Responses = []byte(`{"responses": [
		{"match": {"method": "GET", "urlPattern": "/api/hyperfleet/v1/clusters/.*"},
		 "responses": [{"statusCode": 200, "headers": {"Content-Type": "application/json"},
		  "body": {"id": "c-1", "kind": "Cluster", "name": "home", "generation": "3", "spec": {"tier": "gold"}}}]},
		{"match": {"method": "PATCH", "urlPattern": "/api/hyperfleet/v1/clusters/.*/status"},
		 "responses": [{"statusCode": 200, "body": {}}]}]}`)

	report, shown := runDryRun(t, options, false)
	if report.Result.Event != "done" || report.Result.Status != "success" {
		t.Errorf("the event is not handled:\n%s", shown)
	}

	options.Event = []byte(strings.Replace(string(options.Event), "io.hyperfleet.cluster.updated", "io.example.cluster.updated", 1))
	if report, _ := runDryRun(t, options, false); report.Result.Event != "poison" {
		t.Errorf("the event of another program is %s", report.Result.Event)
	}
}

// The report names objects that no discovery finds, with the difference, and an adapter name that was
// assumed.
func TestDryRunReportsUnmatchedObjects(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		discovery  string
		deployment *adapter.Deployment
		want       []string
	}{
		"another adapter's label": {
			`{"apiVersion":"batch/v1","kind":"Job","metadata":{"namespace":"c1","labels":{"hyperfleet.io/adapter":"demo"}}}`, nil,
			[]string{
				"\nAdapter: dry-run (assumed, because --config is not set;",
				"\nObjects not found by any discovery\n  Job.batch c1/x: label hyperfleet.io/adapter is \"demo\" (want \"dry-run\"), label hyperfleet.io/resource-id is missing",
			},
		},
		"a kind that no entry has": {
			`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"c1"}}`, newDemoDeployment(),
			[]string{"\nObjects not found by any discovery\n  Pod c1/x: no discovery looks for a Pod with this name and namespace\n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			// This task discovers the Jobs by their labels.
			byLabels := filepath.Join(t.TempDir(), "task.yaml")
			text := strings.Replace(string(readDryRun(t, "task.yaml")), `by_name: "{{ .clusterId }}-job"}`, `by_selectors: {label_selector: `+
				`{hyperfleet.io/adapter: "{{ .adapter.name }}", hyperfleet.io/resource-id: "{{ .clusterId }}"}}}`, 1)

			must.Do(t, os.WriteFile(byLabels, []byte(text), 0o600))

			options := dryRunOptions(t, byLabels)
			options.Deployment, options.Responses = tc.deployment, readDryRun(t, "responses.json")
			options.Discovery = []byte(`{"existing":{"x":` + tc.discovery + `}}`)

			_, report := runDryRun(t, options, false)

			for _, want := range tc.want {
				if !strings.Contains(report, want) {
					t.Errorf("the report does not contain %q:\n%s", want, report)
				}
			}

			if assumed := strings.Contains(report, "assumed"); assumed != (tc.deployment == nil) {
				t.Errorf("the report contains the note on the assumed name: %v", assumed)
			}
		})
	}
}

func TestInvalidDryRunFiles(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		change func(*dryrun.Options)
		want   string
	}{
		"no event":         {func(o *dryrun.Options) { o.Event = []byte("{") }, "read event"},
		"an unknown field": {func(o *dryrun.Options) { o.Responses = []byte(`{"answers":[]}`) }, "answers: unknown field"},
		"no pattern":       {func(o *dryrun.Options) { o.Responses = []byte(`{"responses":[{"responses":[{"statusCode":200}]}]}`) }, "set a pattern"},
		"an invalid pattern": {func(o *dryrun.Options) {
			o.Responses = []byte(`{"responses":[{"match":{"urlPattern":"("},"responses":[{"statusCode":200}]}]}`)
		}, "urlPattern"},
		"no answer": {func(o *dryrun.Options) { o.Responses = []byte(`{"responses":[{"match":{"urlPattern":"x"}}]}`) }, "at least one"},
		"no status": {func(o *dryrun.Options) {
			o.Responses = []byte(`{"responses":[{"match":{"urlPattern":"x"},"responses":[{}]}]}`)
		}, "not an HTTP status"},
		"no objects":               {func(o *dryrun.Options) { o.Discovery = []byte(`[]`) }, "read discovery"},
		"one of three keys":        {func(o *dryrun.Options) { o.Discovery = []byte(`{"existing":{},"a":{"kind":"Pod"}}`) }, "below existing and created"},
		"an object without a kind": {func(o *dryrun.Options) { o.Discovery = []byte(`{"existing":{"a":{"metadata":{}}}}`) }, "apiVersion and kind"},
		"another name": {func(o *dryrun.Options) {
			o.Discovery = []byte(`{"existing":{"a":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}}}`)
		}, "has the name b"},
		"an object that is a string": {func(o *dryrun.Options) { o.Discovery = []byte(`{"existing":{"a":"b"}}`) }, "existing.a: is \"b\", want a mapping"},
	} {
		options := dryRunOptions(t, "task.yaml")
		tc.change(&options)

		if _, err := dryrun.Run(t.Context(), options); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}
