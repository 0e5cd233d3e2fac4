// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// The printed configuration names the source of each value that is not the default, and can be decoded again.
func TestPrintShowsSources(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("debug: true\nnames: [a, b]\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	spec := strictyaml.Spec[program]{
		Default: program{Name: "default", Rate: 1}, Environ: func() []string { return []string{"HYPERFLEET_RATE=2"} },
	}

	out, err := runCommand(t, &spec, "print", "--config", file, "--framework-version", "v2")
	if err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{
		"name: default\n", "rate: 2 # env HYPERFLEET_RATE\n", "debug: true # file " + file + "\n",
		"names: # file " + file + "\n", "frameworkVersion: v2 # flag --framework-version\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

// Problems of validation are reported together with problems of decoding.
func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()

	_, err := loadProgram(t, "name: bad\nrate: fast\nnams: [x]\n", nil)

	for _, want := range []string{"name: is bad", "rate: ", "nams: unknown field"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not contain %q", err, want)
		}
	}
}
