// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var reDifference = regexp.MustCompile(`(?m)^## (.*?)(?: {2}\[|: real)`)

// TestCompare asks the same of a real Proxmox VE and of the simulator. Every
// difference must be among those of testdata/differences.txt, and each of them
// must still be there.
//
//	REALPVE=FOLDER_OF_THE_KIT REALPVE_BOX=FOLDER_OF_A_BOX go test ./sim/pve -run TestCompare
func TestCompare(t *testing.T) {
	t.Parallel()
	kit, box := os.Getenv("REALPVE"), os.Getenv("REALPVE_BOX")
	if kit == "" || box == "" {
		t.Skip("REALPVE (the kit's folder) and REALPVE_BOX (that of a box that is up) are not set")
	}
	model, err := filepath.Abs("testdata/compare.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The kit starts the simulator with a model and an address; the model is ours.
	program := filepath.Join(t.TempDir(), "pvesim")
	script := fmt.Sprintf("#!/bin/sh\nshift 2\nexec '%s' %s --model '%s' \"$@\"\n", os.Args[0], asProgram, model)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"150001", "150002", "150009", "170001"} { // of an earlier, perhaps a broken run
		_ = exec.CommandContext(t.Context(), filepath.Join(kit, "realpve"), "exec", box, "qm", "stop", id).Run()
		_ = exec.CommandContext(t.Context(), filepath.Join(kit, "realpve"), "exec", box, "qm", "destroy", id, "--purge").Run()
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(kit, "compare", "run"), box, program).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	known := knownDifferences(t)
	found := map[string]bool{}
	for _, m := range reDifference.FindAllStringSubmatch(string(out), -1) {
		found[m[1]] = true
	}
	for _, label := range slices.Sorted(maps.Keys(found)) {
		if _, ok := known[label]; !ok {
			t.Errorf("%s: the answers differ", label)
		}
	}
	for _, label := range slices.Sorted(maps.Keys(known)) {
		if !found[label] && known[label] {
			t.Errorf("%s: the answers are the same now; take it off testdata/differences.txt", label)
		}
	}
	if t.Failed() || testing.Verbose() {
		t.Logf("%s", out)
	}
}

// knownDifferences reads LABEL: REASON, a line each; those after a ~ are not
// there every time.
func knownDifferences(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile("testdata/differences.txt")
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
			t.Fatalf("differences.txt: %q has no reason", line)
		}
		sometimes, is := strings.CutPrefix(label, "~")
		out[sometimes] = !is
	}
	return out
}
