// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hyperfleet_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// TestFormerReasons checks that the page of conditions lists each renamed reason, and that no reason was renamed to
// a former one.
func TestFormerReasons(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("docs/reference/conditions.md")
	if err != nil {
		t.Fatal(err)
	}

	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| `(\\w+)` \\|$").FindAllSubmatch(page, -1) {
		listed[string(row[1])] = string(row[2])
	}

	former := v1alpha1.FormerReasons()
	if diff := cmp.Diff(former, listed); diff != "" {
		t.Errorf("docs/reference/conditions.md does not list the former reasons (-want +got):\n%s", diff)
	}

	for _, reason := range slices.Sorted(maps.Values(former)) {
		if former[reason] != "" {
			t.Errorf("%s is the new name of a reason, and a former one", reason)
		}
	}
}
