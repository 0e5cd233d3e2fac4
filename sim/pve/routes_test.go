// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

var update = flag.Bool("update", false, "write the list of calls into docs/pvesim.md")

// TestDocumentedRoutes checks that the page lists all calls that the simulator implements.
func TestDocumentedRoutes(t *testing.T) {
	t.Parallel()
	const page, begin, end = "../../docs/pvesim.md", "<!-- calls: go test ./sim/pve -run TestDocumentedRoutes -update -->\n", "<!-- end of calls -->\n"
	methods := map[string][]string{}
	for _, r := range pve.Routes() {
		methods[r[1]] = append(methods[r[1]], r[0])
	}
	var table strings.Builder
	table.WriteString("\n| Path | Methods |\n|---|---|\n")
	for _, path := range slices.Sorted(maps.Keys(methods)) {
		fmt.Fprintf(&table, "| `%s` | %s |\n", path, strings.Join(slices.Sorted(slices.Values(methods[path])), ", "))
	}
	table.WriteString("\n")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	documented, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the lines around the list of calls", page)
	}
	if documented == table.String() {
		return
	}
	if !*update {
		t.Fatalf("%s does not list the calls of the code; run this test with -update", page)
	}
	if err := os.WriteFile(page, []byte(head+begin+table.String()+end+tail), 0o600); err != nil {
		t.Fatal(err)
	}
}
