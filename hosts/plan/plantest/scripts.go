// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plantest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
)

const maxGolden = 100 << 10

// testGolden compares the pushed parts with golden files. The flag -update writes the files.
func (k Kind[C]) testGolden(t *testing.T) {
	p := k.plan(t, k.One)
	got := map[string]string{"probe.sh": p.ProbeScript()}

	var index strings.Builder

	for _, part := range p.Parts() {
		fmt.Fprintf(&index, "%s %s %s path=%s mode=%04o owner=%s reapplies=%s\n",
			part.Label, part.Kind, part.Schedule, part.Path, part.Mode, part.Owner, strings.Join(part.Reapplies, ","))

		got[part.Label+".apply.sh"] = part.Apply
		if part.Kind == plan.File || part.Kind == plan.Unit {
			got[part.Label+".content"] = part.Content.String()
		}
	}

	got["plan.txt"] = index.String()
	dir := filepath.Join("testdata", "golden")

	if update() {
		write(t, dir, got)
	}

	want := map[string]string{}

	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}

		want[entry.Name()] = string(data)
	}

	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("%s (if the change is intended, run with -update):\n%s", dir, diff)
	}
}

// update returns the -update flag of the test that runs the suite.
func update() bool {
	f := flag.Lookup("update")

	return f != nil && f.Value.String() == "true"
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}

	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}

	for name, text := range files {
		if len(text) > maxGolden {
			t.Fatalf("%s has %d bytes: a plan under test takes small programs", name, len(text))
		}

		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// testScripts runs bash and shellcheck on every script of a plan: the scripts that are run, those that
// stay on the host, and the probe.
func (k Kind[C]) testScripts(t *testing.T) {
	bash, shellcheck := Tool(t, "bash", "bash"), Tool(t, "shellcheck", "shellcheck")
	seen := map[string]bool{}

	for _, cfg := range []C{k.One, k.Other} {
		p := k.plan(t, cfg)
		all := map[string]string{"probe": p.ProbeScript()}

		for _, part := range p.Parts() {
			all[part.Label] = part.Apply
			if text := part.Content.String(); strings.HasPrefix(text, "#!/bin/bash\n") {
				all[part.Label+", at the host"] = text
			}

			for _, required := range []string{"set -euo pipefail\n", "\nmain; exit 0\n"} {
				if !strings.Contains(part.Apply, required) {
					t.Errorf("%s: the script has no %q", part.Label, required)
				}
			}

			if strings.Contains(part.Apply, "set -x") || strings.Contains(part.Apply, "xtrace") {
				t.Errorf("%s: the script traces its commands, and secrets with them", part.Label)
			}
		}

		for name, script := range all {
			lint(t, name, script, bash, "-n")

			// Scripts with the same body differ only in the values of their variables.
			_, body, _ := strings.Cut(script, "\n\n")
			if !seen[body] {
				// Probes are called through a variable that contains their name.
				lint(t, name, script, shellcheck, "--shell=bash", "--exclude=SC2317", "-")
			}

			seen[body] = true
		}
	}
}

// Lint runs bash and shellcheck on a script that is in no plan.
func Lint(t *testing.T, name, script string) {
	t.Helper()
	lint(t, name, script, Tool(t, "bash", "bash"), "-n")
	lint(t, name, script, Tool(t, "shellcheck", "shellcheck"), "--shell=bash", "-")
}

func lint(t *testing.T, name, script, tool string, args ...string) {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), tool, args...) //nolint:gosec // G204: a tool that the test has named
	cmd.Stdin = strings.NewReader(script)

	var out bytes.Buffer

	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %s: %v\n%s\n%s", name, filepath.Base(tool), err, out.String(), script)
	}
}

// Tool returns the path of a program. It fails the test if the program is missing: make setup
// installs it.
func Tool(t *testing.T, name, pkg string) string {
	t.Helper()

	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is missing: run make setup, or install the package %s", name, pkg)
	}

	return path
}
