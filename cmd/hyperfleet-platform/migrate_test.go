// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet-platform/root"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/spelling"
)

// TestMigrateCommand checks that the command converts files, that the programs accept the result, and that it reports
// what they refuse.
func TestMigrateCommand(t *testing.T) {
	t.Parallel()

	const sentinel = "sentinel: {name: a}\nclients: {hyperfleet_api: {base_url: 'http://a', version: v1}}\nresource_type: clusters\n"

	for name, test := range map[string]struct {
		text string
		want []string
		code int
	}{
		"Sentinel": {text: sentinel, want: []string{"resource_type: clusters", "file: configuration of Sentinel", "note: "}},
		"an expression that does not compile": {
			text: sentinel + "message_decision: {result: 'resource.('}\n", code: 1,
			want: []string{"left: converted file:", "message_decision.result"},
		},
		"API": {
			text: "server: {jwt: {enabled: false}}\nentities: [{kind: Cluster, plural: clusters}]\n",
			want: []string{"insecure_no_authentication: true"},
		},
		"a kind that the API refuses": {
			text: "server: {jwt: {enabled: false}}\nentities: [{kind: cluster, plural: clusters}]\n", code: 1,
			want: []string{"left: converted file:", "entities"},
		},
		"no file of upstream": {text: "a: [", code: 1, want: []string{"invalid YAML"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			out, code := runMigrate("migrate", writeFile(t, "upstream.yaml", test.text))
			if code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}

			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}

	t.Run("usage", func(t *testing.T) {
		t.Parallel()

		if out, code := runMigrate("migrate"); code != 2 || !strings.Contains(out, "pass exactly one file") {
			t.Errorf("exit code %d: %s", code, out)
		}

		out, code := runMigrate("adapter", "migrate", filepath.Join(t.TempDir(), "none"))
		if code != 1 || !strings.Contains(out, "deprecated") || !strings.Contains(out, "no such file") {
			t.Errorf("exit code %d: %s", code, out)
		}
	})
}

// runMigrate runs the program, and returns its output with its error at the end, and its exit code.
func runMigrate(args ...string) (out string, code int) {
	out, err := spelling.Execute(root.New(), args...)
	if err == nil {
		return out, 0
	}

	return out + err.Error(), max(cli.ExitCode(err), 1)
}
