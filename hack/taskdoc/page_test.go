// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPageMatchesTypes checks that the committed page matches the types.
func TestPageMatchesTypes(t *testing.T) {
	t.Parallel()

	root := filepath.Join("..", "..")

	want, err := renderPage(filepath.Join(root, types))
	if err != nil {
		t.Fatal(err)
	}

	got, err := os.ReadFile(filepath.Join(root, reference))
	if err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("run make generate:\n%s", diff)
	}
}

// TestLinksAndDescriptions checks that each linked type has a heading, and that each field has a
// description.
func TestLinksAndDescriptions(t *testing.T) {
	t.Parallel()

	text, err := renderPage(filepath.Join("..", "..", types))
	if err != nil {
		t.Fatal(err)
	}

	if empty := regexp.MustCompile(`(?m)^.*\|  ?\|$`).FindAllString(text, -1); len(empty) > 0 {
		t.Errorf("fields without a meaning:\n%s", strings.Join(empty, "\n"))
	}

	links := regexp.MustCompile(`\[(\w+)\]\(#`).FindAllStringSubmatch(text, -1)
	if len(links) < 20 {
		t.Errorf("%d links", len(links))
	}

	for _, link := range links {
		if !strings.Contains(text, "\n### "+link[1]+"\n") {
			t.Errorf("%s has no heading", link[1])
		}
	}

	for _, want := range []string{"| `source` | string or [Source](#source) |", "| `timeout` | duration |", "| `historyLimit` | integer |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no line %s", want)
		}
	}
}
