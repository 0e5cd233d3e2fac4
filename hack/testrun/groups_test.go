// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	t.Parallel()

	tests := map[string]testProgram{"m": {}, "m/kit": {}, "m/hosts": {startsPrograms: true}, "m/bridge": {startsPrograms: true}, "m/test/fleet": {startsPrograms: true}}

	got := groupPackages("m", tests, map[string][]string{"hosts": {"hosts/mac"}})
	for i := range got {
		got[i] = got[i].sortLike([]string{"m/test/fleet"}, "m")
	}

	want := []group{
		{packages: []string{"m", "m/kit"}},
		{packages: []string{"m/test/fleet", "m/bridge"}, startsPrograms: true},
		{packages: []string{"m/hosts"}, race: true, startsPrograms: true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(group{})); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}

	if byFolder := got[1].sortLike([]string{"./bridge"}, "m"); byFolder.packages[0] != "m/bridge" {
		t.Errorf("m/bridge, named by its folder, is not first: %v", byFolder.packages)
	}

	if left := filterGroups(got, []string{"m/hosts"}); len(left) != 1 || !left[0].race {
		t.Errorf("with the hosts alone %+v", left)
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()

	given := []string{"-vet=off", "-skip=SPIRE"}

	for name, tc := range map[string]struct {
		group    group
		checkout string
		want     []string
	}{
		"starts no programs":       {group{}, "abc", given},
		"with the detector":        {group{race: true}, "abc", []string{"-vet=off", "-skip=SPIRE", "-race"}},
		"starts programs":          {group{startsPrograms: true}, "abc", []string{"-vet=off", "-skip=SPIRE|^checkout abc$"}},
		"no state of the checkout": {group{startsPrograms: true}, "", []string{"-vet=off", "-skip=SPIRE", "-count=1"}},
	} {
		if got := tc.group.testFlags(given, tc.checkout); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// After any change, all tests that start programs run again. Other tests run again only if they depend on the change.
func TestCachedTests(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	write("go.mod", "module example.com/m\n\ngo 1.24\n")
	write("pure/a_test.go", "package pure\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {}\n")
	write("served/a_test.go", "package served\n\nimport (\n\"os/exec\"\n\"testing\"\n)\n\nfunc TestA(t *testing.T) { _ = exec.Command(\"true\") }\n")

	if out, err := exec.CommandContext(t.Context(), "git", "-C", dir, "init").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, out)
	}

	held := func() []string {
		var out strings.Builder

		if good, err := (&run{out: &out, dir: dir}).runAll(t.Context(), []string{"./..."}); err != nil || !good {
			t.Fatalf("%v\n%s", err, out.String())
		}

		var names []string

		for line := range strings.Lines(out.String()) {
			if fields := strings.Fields(line); fields[0] == "ok" && strings.HasSuffix(strings.TrimSpace(line), "cached") {
				names = append(names, fields[1])
			}
		}

		return names
	}

	held()

	if got := held(); !slices.Equal(got, []string{"example.com/m/pure", "example.com/m/served"}) {
		t.Errorf("without a change %q are cached", got)
	}

	// Use a new content for each run, because go also caches the results of earlier runs of this test.
	write("notes.txt", time.Now().String())

	if got := held(); !slices.Equal(got, []string{"example.com/m/pure"}) {
		t.Errorf("after a change of a file that no test imports %q are cached", got)
	}
}
