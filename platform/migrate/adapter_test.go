// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/migrate"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestAdapterFiles checks that upstream's task files and configurations load after the migration, and that each
// change is reported.
func TestAdapterFiles(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()

		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))

		return path
	}

	write("namespace.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: '{{ .clusterId }}'}\n")

	upstream := write("task.yaml", `params:
  - {name: clusterId, source: event.id, type: string, required: true}
  - {name: generation, source: event.generation, type: int}
  - {name: generation, source: event.generation, type: int, required: true}
preconditions:
  - name: clusterStatus
    api_call: {method: GET, url: "/clusters/{{ .clusterId }}"}
    capture:
      - name: reconciled
        expression: |
          status.conditions.filter(c, c.type == "Reconciled").size() > 0
            ? status.conditions.filter(c, c.type == "Reconciled")[0].status : "False"
      - {name: tier, expression: 'spec.tier'}
resources:
  - name: space
    manifest: {ref: /etc/adapter/namespace.yaml}
    discovery: {by_name: "{{ .clusterId }}"}
`)

	if _, err := task.LoadFile(upstream, nil); err == nil {
		t.Fatal("no changes")
	}

	got, err := migrate.File(upstream, migrate.Checks{})
	must.Do(t, err)

	for _, want := range []string{"response.status.conditions.filter", "? response.status.conditions", "'response.spec.tier'", "ref: namespace.yaml"} {
		if !strings.Contains(string(got.Text), want) {
			t.Errorf("no %s in:\n%s", want, got.Text)
		}
	}

	if _, err := task.LoadFile(write("migrated.yaml", string(got.Text)), nil); err != nil {
		t.Errorf("%v in:\n%s", err, got.Text)
	}

	if len(got.Notes) != 5 || len(got.Left) != 0 || !strings.Contains(got.Notes[4].Message, "defined again below") {
		t.Errorf("changes %v, remaining %v", got.Notes, got.Left)
	}

	if again, err := migrate.File(filepath.Join(dir, "migrated.yaml"), migrate.Checks{}); err != nil || len(again.Notes) != 1 {
		t.Errorf("%v, %v", again.Notes, err)
	}

	config := write("config.yaml", "adapter: {name: dns}\nclients:\n  hyperfleet_api: {base_url: http://a}\n"+
		"  broker: {topic: clusters, subscription_id: dns}\n")

	got, err = migrate.File(config, migrate.Checks{})
	if err != nil || len(got.Left) != 0 || len(got.Notes) != 1 || !strings.Contains(string(got.Text), "identity_key_file: /") {
		t.Errorf("%+v, %v", got, err)
	}
}
