// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

const differences = "testdata/differences.txt"

var reDifference = regexp.MustCompile(`(?m)^## (.*?)(?: {2}\[|: real)`)

// The same is asked of a real Proxmox VE and of the simulator. Every difference must be among
// those of testdata/differences.txt, and each of them must still be there.
func TestCompare(t *testing.T) {
	kit := realpve.Kit(t)

	model, err := filepath.Abs("testdata/compare.yaml")
	if err != nil {
		t.Fatal(err)
	}

	// The kit starts the simulator with a model and an address; the model is ours.
	program := filepath.Join(t.TempDir(), "pvesim")
	script := fmt.Sprintf("#!/bin/sh\nshift 2\nexec '%s' --model '%s' \"$@\"\n", exe.Build(t, "cmd/pvesim"), model)

	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}

	out := kit.Compare(t, program)
	known := knownDifferences(t)
	found := map[string]bool{}

	for _, m := range reDifference.FindAllStringSubmatch(out, -1) {
		found[m[1]] = true
	}

	for _, label := range slices.Sorted(maps.Keys(found)) {
		if _, ok := known[label]; !ok {
			t.Errorf("%s: the answers differ", label)
		}
	}

	for _, label := range slices.Sorted(maps.Keys(known)) {
		if !found[label] && known[label] {
			t.Errorf("%s: the answers are the same now; take it off %s", label, differences)
		}
	}

	if t.Failed() {
		t.Log(out)
	}
}

// knownDifferences reads LABEL: REASON, a line each; those after a ~ are not there every
// time.
func knownDifferences(t *testing.T) map[string]bool {
	t.Helper()

	text, err := os.ReadFile(differences)
	if err != nil {
		t.Fatal(err)
	}

	out := map[string]bool{}

	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}

		label, reason, ok := strings.Cut(line, ": ")
		if !ok || reason == "" {
			t.Fatalf("%s: %q has no reason", differences, line)
		}

		sometimes, is := strings.CutPrefix(label, "~")
		out[sometimes] = !is
	}

	return out
}
