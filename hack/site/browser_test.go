// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/browser"
)

// pictures is the folder for screenshots of the pages. It is empty if no screenshots are wanted.
var pictures = flag.String("pictures", "", "folder for pictures of the pages")

// writeSite writes the site to a folder, and returns the folder and its file:// URL.
func writeSite(t *testing.T) (dir, address string) {
	t.Helper()

	dir = filepath.Join(t.TempDir(), "site")
	if err := writeFiles(dir, listFiles(t)); err != nil {
		t.Fatal(err)
	}

	return dir, "file://" + filepath.ToSlash(dir)
}

// The search works in a browser without a server and without a network.
func TestSearch(t *testing.T) { //nolint:paralleltest // one browser at a time
	_, address := writeSite(t)

	for query, want := range map[string]string{
		"scale+set":            "docs/guides/scale-sets.html",
		"maxReplicas":          "docs/reference/api.html",
		"tutorial+nothingness": "No section has all of these words.",
		"(+%5B+*":              "<article>", // no words: the page stays unchanged
		"%3Cimg+src=x%3E+pool": "",
	} {
		from := "/index.html"
		if want == "<article>" {
			from = "/docs/guides/pools.html"
		}

		dom := browser.Open(t, "--virtual-time-budget=5000", "--dump-dom", address+from+"?q="+query)

		_, results, _ := strings.Cut(dom, `id="results"`)
		if before, _, there := strings.Cut(results, `id="content"`); there && want != "<article>" {
			results = before
		}

		if !strings.Contains(results, want) {
			t.Errorf("%s: found no %s in\n%.2000s", query, want, results)
		}

		if strings.Contains(results, "<img src=x") {
			t.Errorf("%s: the query is rendered as markup", query)
		}
	}
}

// The pages can be rendered in light and dark, wide and narrow, and printed.
func TestPictures(t *testing.T) { //nolint:paralleltest // one browser at a time
	_, address := writeSite(t)

	dir := *pictures
	if dir == "" {
		dir = t.TempDir()
	}

	for name, args := range map[string][]string{
		"home":   {browser.Light, "--window-size=1280,1000", address + "/index.html"},
		"page":   {browser.Light, "--window-size=1440,1000", address + "/docs/guides/pools.html"},
		"dark":   {browser.Dark, "--window-size=1440,1000", address + "/docs/start/runners.html"},
		"narrow": {browser.Light, "--window-size=500,900", address + "/docs/guides/github.html"},
	} {
		file := filepath.Join(dir, name+".png")
		browser.Open(t, append([]string{"--screenshot=" + file}, args...)...)

		if info, err := os.Stat(file); err != nil || info.Size() < 10<<10 {
			t.Errorf("picture %s: %v, %v", name, info, err)
		}
	}

	file := filepath.Join(dir, "page.pdf")
	browser.Open(t, "--print-to-pdf="+file, "--no-pdf-header-footer", address+"/docs/guides/pools.html")

	if info, err := os.Stat(file); err != nil || info.Size() < 10<<10 {
		t.Errorf("the page is not printed: %v, %v", info, err)
	}
}
