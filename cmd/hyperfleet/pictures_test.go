// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/test/browser"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// update makes the test write the screenshots of the documentation.
var update = flag.Bool("update", false, "write the pictures of docs/images")

const (
	imagesDir = "../../docs/images"
	// shownServer is the API server in the screenshots.
	shownServer = "https://kube.example.com:6443"
)

// screenshot is a picture of a page.
type screenshot struct {
	path   string
	height int
	dark   bool
}

// takeScreenshots takes screenshots of the pages, in light and dark.
func takeScreenshots(t *testing.T, pages http.Handler, namespace string) {
	t.Helper()

	takePictures(t, pages, map[string]screenshot{
		"web-overview":      {path: "/", height: 1180},
		"web-overview-dark": {path: "/", height: 1180, dark: true},
		"web-pool":          {path: "/pools/" + namespace + "/arm64", height: 900},
		"web-jobs":          {path: "/jobs", height: 900},
		"web-jobs-filter":   {path: "/jobs?q=checkout&state=Failed", height: 320},
		"web-job":           {path: "/jobs/" + namespace + "/github-actions-29679400020", height: 1060},
		"web-job-waits":     {path: "/jobs/" + namespace + "/github-actions-29679400040", height: 640},
		"web-machine":       {path: "/machines/" + namespace + "/linux-large-m010", height: 700},
		"web-cluster":       {path: "/clusters/rack-b", height: 520},
		"web-hosts":         {path: "/hosts", height: 460},
	})
}

// takePictures writes pictures of pages.
func takePictures(t *testing.T, pages http.Handler, pictures map[string]screenshot) {
	t.Helper()

	server := httptest.NewServer(pages)
	t.Cleanup(server.Close)

	dir := t.TempDir()
	if *update {
		dir = imagesDir
	}

	for name, picture := range pictures {
		file, err := filepath.Abs(filepath.Join(dir, name+".png"))
		must.Do(t, err)

		scheme := browser.Light
		if picture.dark {
			scheme = browser.Dark
		}

		browser.Open(t, fmt.Sprintf("--window-size=1280,%d", picture.height), "--screenshot="+file, scheme, server.URL+picture.path)

		if info, err := os.Stat(file); err != nil || info.Size() < 10<<10 {
			t.Errorf("picture %s: %v, %v", name, info, err)
		}
	}
}

// openWithScript opens a page in a browser with a script that runs after the script of the pages, and returns the first
// query that the script requests from /result. flags say when the browser ends.
func openWithScript(t *testing.T, pages http.Handler, path, script string, flags ...string) url.Values {
	t.Helper()

	results := make(chan url.Values, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/live.js":
			answer := httptest.NewRecorder()
			pages.ServeHTTP(answer, r)
			w.Header().Set("Content-Type", "text/javascript")

			_, _ = io.WriteString(w, answer.Body.String()+script)
		case "/result":
			select {
			case results <- r.URL.Query():
			default:
			}
		default:
			pages.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)

	browser.Open(t, slices.Concat([]string{"--window-size=1280,900"}, flags, []string{server.URL + path})...)

	select {
	case result := <-results:
		return result
	case <-time.After(time.Minute):
		t.Fatal("the script requested no result")

		return nil
	}
}

// checkTyping checks in a browser that the list shows only matching rows while the user types in the filter, that the
// filter is in the URL and keeps the focus, and that the pages do nothing that their policy forbids.
func checkTyping(t *testing.T, pages http.Handler) {
	t.Helper()

	const script = `
const violations = [];
document.addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
const search = document.querySelector("input[type=search]");
search.focus();
for (const text of ["SMA", "SMALL m05", "SMALL m051"]) {
	search.value = text;
	search.dispatchEvent(new InputEvent("input", { bubbles: true }));
}
const wait = setInterval(() => {
	const rows = [...document.querySelectorAll("tbody tr td:first-child")].map((cell) => cell.textContent.trim());
	if (rows.length === 1) {
		clearInterval(wait);
		const now = document.activeElement;
		fetch("/result?" + new URLSearchParams({
			row: rows[0], url: location.pathname + location.search, typed: now.value, cursor: now.selectionStart, violations,
		}));
	}
}, 50);`

	got := openWithScript(t, pages, "/machines?state=Idle&page=3", script, "--virtual-time-budget=10000", "--dump-dom")
	want := url.Values{
		"row": {"linux-small-m051"}, "url": {"/machines?state=Idle&q=SMALL+m051"}, "typed": {"SMALL m051"}, "cursor": {"10"}, "violations": {""},
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// checkPhone checks in a browser with the width of a phone that the menu, the state of each row, and the reasons why jobs
// wait are visible without scrolling to the side, and that the page is not wider than the phone.
func checkPhone(t *testing.T, pages http.Handler) {
	t.Helper()

	const script = `
const wide = [...document.querySelectorAll("nav a, td.why, td:nth-child(2)")].filter((element) => {
	const box = element.getBoundingClientRect();
	return box.right > innerWidth || box.left < 0;
});
fetch("/result?" + new URLSearchParams({
	width: innerWidth, wide: wide.map((element) => element.textContent.trim().slice(0, 30)), scrolls: document.documentElement.scrollWidth > innerWidth,
}));`

	// Chromium lays out no window that is narrower.
	for _, path := range []string{"/jobs?state=Queued", "/machines"} {
		got := openWithScript(t, pages, path, script, "--window-size=500,844", "--virtual-time-budget=10000", "--dump-dom")
		if diff := cmp.Diff(url.Values{"width": {"500"}, "wide": {""}, "scrolls": {"false"}}, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}

// logFirstPaint logs the time until a browser first paints a page.
func logFirstPaint(t *testing.T, pages http.Handler, path string) {
	t.Helper()

	const script = `new PerformanceObserver((list) => { for (const e of list.getEntries()) {
		if (e.name === "first-contentful-paint") { fetch("/result?ms=" + Math.round(e.startTime)); }
	} }).observe({ type: "paint", buffered: true });`

	got := openWithScript(t, pages, path, script, "--screenshot="+filepath.Join(t.TempDir(), "x.png"), "--timeout=5000")
	t.Logf("%s: first paint after %s ms", path, got.Get("ms"))
}
