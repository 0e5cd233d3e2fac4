// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

var start = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)

func fixed() task.Option { return task.WithClock(testclock.NewFakePassiveClock(start)) }

// TestExamplesOfTheDocument: every example of document 001 loads, its configuration
// reference included.
func TestExamplesOfTheDocument(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("testdata/seed/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d examples, %v", len(files), err)
	}

	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()

			loaded, err := task.LoadFile(file, nil, fixed())
			if err != nil {
				t.Fatal(err)
			}

			if len(loaded.Resources) == 0 {
				t.Error("no resources")
			}
		})
	}
}

// TestConfigurationReferenceIsWhole: each field of the reference has come through.
func TestConfigurationReferenceIsWhole(t *testing.T) {
	t.Parallel()

	loaded, err := task.LoadFile("testdata/seed/configuration-reference.yaml", nil, fixed())
	if err != nil {
		t.Fatal(err)
	}

	r := loaded.Resources[1]
	if r.Name != "example" || r.When == nil || r.Manifest == nil || r.Discovery.Labels == nil || r.Owner != "anotherAlias" ||
		*r.Retention.HistoryLimit != 3 || r.Retention.TTL != 24*time.Hour || r.Apply == nil || len(r.Patches) != 1 || r.Detach == nil ||
		r.Recreate == nil || r.Delete == nil || r.PropagationPolicy != "Background" || r.Transport != transport.Kubernetes {
		t.Errorf("resource: %+v", r)
	}

	var said []string
	for _, warning := range loaded.Warnings {
		said = append(said, warning.String())
	}

	for _, want := range []string{"alias is an old form", "orphan is an old form", "maestro is not used", "the name has to vary", "also finds objects"} {
		if !strings.Contains(strings.Join(said, "\n"), want) {
			t.Errorf("warnings: %q, want %s", said, want)
		}
	}
}

// TestRetentionExampleRenders: the name of the example, with now piped through replace.
func TestRetentionExampleRenders(t *testing.T) {
	t.Parallel()

	loaded, err := task.LoadFile("testdata/seed/7-retention.yaml", nil, fixed())
	if err != nil {
		t.Fatal(err)
	}

	vars := map[string]any{"clusterId": "c1", "namespace": "ns", "generation": int64(4)}

	object, err := loaded.Resources[0].Manifest.RenderObject(t.Context(), vars)
	if err != nil {
		t.Fatal(err)
	}

	metadata, ok := object["metadata"].(map[string]any)
	if !ok || metadata["name"] != "c1-job-2026-05-06T07-08-09Z" {
		t.Errorf("metadata: %v", object["metadata"])
	}
}

// TestConditionsExample: the precondition's old form is the call that it stands for, and
// the expression says how the API spells what it reads.
func TestConditionsExample(t *testing.T) {
	t.Parallel()

	loaded, err := task.LoadFile("testdata/seed/5-conditions.yaml", nil, fixed())
	if err != nil {
		t.Fatal(err)
	}

	if len(loaded.Warnings) != 1 || !strings.HasSuffix(loaded.Warnings[0].String(), "type: hyperfleet_api is an old form of api_call "+
		"(write name: clusterResource, and api_call: {method: GET, url: resources/{{ .clusterId }}})") {
		t.Errorf("warnings: %v", loaded.Warnings)
	}

	call := loaded.Preconditions[0]
	if call.Name != "clusterResource" || call.APICall.Method != http.MethodGet {
		t.Errorf("precondition: %+v", call)
	}

	url, err := call.APICall.URL.Render(map[string]any{"clusterId": "c1"})
	if err != nil || url != "resources/c1" {
		t.Errorf("url: %s, %v", url, err)
	}

	gate := func(conditions ...any) (bool, error) {
		return loaded.Resources[0].Patches[0].When.Bool(t.Context(), map[string]any{
			"resources":       map[string]any{"certSecret": map[string]any{}},
			"clusterResource": map[string]any{"status": map[string]any{"conditions": conditions}},
		})
	}

	if yes, err := gate(map[string]any{"type": "Ready"}); !yes || err != nil {
		t.Errorf("not rotated before: %t, %v", yes, err)
	}

	_, err = gate(map[string]any{"type": "CertRotated", "last_transition_time": "2026-05-06T07:08:09Z"})
	if err == nil || !strings.Contains(err.Error(), "conditions of the fleet API have last_transition_time") {
		t.Errorf("the other spelling: %v", err)
	}
}

// TestExamplesOfTheGuide: what the guide shows loads, put where it belongs.
func TestExamplesOfTheGuide(t *testing.T) {
	t.Parallel()

	data, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "guides", "lifecycle-gates.md"))
	if err != nil {
		t.Fatal(err)
	}

	const head = `params:
- {name: clusterId, source: event.id}
- {name: namespace, source: event.id}
- {name: clusterStatus, source: event.status, default: new}
- {name: is_deleting, source: {expression: 'dig(event, "deleted_time") != null'}}
resources:
- {name: other, manifest: {apiVersion: v1, kind: Namespace, metadata: {name: other}}, discovery: {by_name: other}}
`

	const body = "  manifest: {apiVersion: v1, kind: Namespace, metadata: {name: x}}\n  discovery: {by_name: x}\n"

	name := regexp.MustCompile(`resources\.\??(\w+)`)

	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(data), -1)
	if len(blocks) < 8 {
		t.Fatalf("%d examples", len(blocks))
	}

	for _, block := range blocks {
		text := block[1]
		called := "thing"

		if match := name.FindStringSubmatch(text); match != nil {
			called = match[1]
		}

		switch {
		case strings.HasPrefix(text, "    "):
			text = "- name: " + called + "\n" + body + "  lifecycle:\n" + text
		case strings.HasPrefix(text, "  "):
			text = "- name: " + called + "\n" + body + text
		case !strings.Contains(text, "discovery:"):
			text += body
		}

		loaded, err := load(head+text, nil)
		if err != nil {
			t.Errorf("%v\n%s", err, text)
		} else if len(loaded.Warnings) > 0 {
			t.Errorf("warnings: %v\n%s", loaded.Warnings, text)
		}
	}
}
