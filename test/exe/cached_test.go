// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exe_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestBuiltProgramsAreNoInputs checks that the folder of built programs, which all tests share, is no input of a test
// that builds one: go would discard the test's cached result when another test builds a program.
func TestBuiltProgramsAreNoInputs(t *testing.T) {
	t.Parallel()

	const envBuild = "HYPERFLEETTEST_BUILD"

	if os.Getenv(envBuild) != "" {
		exe.Build(t, "hypervisor/example/program")

		return
	}

	inputs := filepath.Join(t.TempDir(), "inputs")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.testlogfile="+inputs)
	cmd.Env = append(os.Environ(), envBuild+"=1")

	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	list, err := os.ReadFile(inputs)
	must.Do(t, err)

	if !strings.Contains(string(list), "go.mod") {
		t.Fatalf("the list of inputs has no go.mod: %s", list)
	}

	for line := range strings.Lines(string(list)) {
		if strings.Contains(line, filepath.Join("bin", "test")) {
			t.Errorf("input of the test: %s", line)
		}
	}
}
