// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package defaults

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestListIsSorted checks the form of the list.
func TestListIsSorted(t *testing.T) {
	t.Parallel()

	lines := strings.Split(strings.TrimSuffix(list, "\n"), "\n")
	if !slices.IsSorted(lines) || len(slices.Compact(slices.Clone(lines))) != len(lines) {
		t.Error("sort the list, with each line once: LC_ALL=C sort -u")
	}

	for _, line := range lines {
		if len(strings.SplitN(line, " | ", 3)) != 3 {
			t.Errorf("%q is not a kind, a setting and a default with | between them", line)
		}
	}
}

// TestEveryKindIsChecked checks that each kind in the list is one that a test compares with the code.
func TestEveryKindIsChecked(t *testing.T) {
	t.Parallel()

	want := []string{
		"chart hyperfleet", "chart hyperfleet-crds", "chart hyperfleet-platform", "code", "config adapter", "config api",
		"config broker", "config operator", "config sentinel", "config sweep", "crd", "flag bootstrap-service",
		"flag forgesim", "flag hyperfleet", "flag hyperfleet-platform", "flag pvesim",
	}
	if diff := cmp.Diff(want, Kinds()); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

// TestReadDefaults checks the forms in which pages name defaults.
func TestReadDefaults(t *testing.T) {
	t.Parallel()

	got := readDefaults("| Key | Meaning | Default |\n|---|---|---|\n" +
		"| `a` | text | `10m` |\n| `b`, `c` | two | `1`, `x y` |\n| `d` | duration | the time. Default: 30m0s. |\n" +
		"| `e` | list | `[f, g]` | at most 3 | its text |\n| `h` | text | `0`: two for each |\n")

	want := map[string][]string{
		"a": {"10m"}, "b": {"1"}, "c": {"x y"}, "d": {"30m"}, "e": {"[f, g]"}, "h": {"0"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestOfUsage checks that the defaults of package flag are found.
func TestOfUsage(t *testing.T) {
	t.Parallel()

	got := OfUsage("p", "  -a string\n    \tfile (default \"/x\")\n  -b\tbool\n  -c duration\n    \ttime (default 1m0s)\n")
	if diff := cmp.Diff([]Setting{{"p --a", "/x"}, {"p --c", "1m"}}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
