// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/test/browser"
)

// update makes the test write the screenshots of the documentation.
var update = flag.Bool("update", false, "write the pictures of docs/images")

const (
	imagesDir = "../../docs/images"
	// shownServer is the API server in the screenshots.
	shownServer = "https://kube.example.com:6443"
)

// serveTopOutput serves a page with the output of `hyperfleet top`.
func serveTopOutput(t *testing.T, list string) http.HandlerFunc {
	t.Helper()

	got := execute(t, env.Config, "top", "--once", "--list", list)
	got.expectSuccess(t)

	shown := html.EscapeString(strings.ReplaceAll(got.out, env.Config.Host, shownServer))
	if !strings.Contains(shown, shownServer) || !strings.Contains(shown, "linux-large") {
		t.Fatalf("it does not show the fleet:\n%s", shown)
	}

	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `<!doctype html><meta charset="utf-8"><body style="background:#16181d;color:#d6dae3;margin:16px">`+
			`<pre style="font:13px/1.45 monospace;margin:0">%s</pre>`, shown)
	}
}

// takeScreenshots takes screenshots of the pages, in light and dark, and of the terminal.
func takeScreenshots(t *testing.T, pages http.Handler, namespace string) {
	t.Helper()

	mux := http.NewServeMux()
	mux.Handle("/", pages)
	mux.Handle("/top/pools", serveTopOutput(t, "pools"))
	mux.Handle("/top/jobs", serveTopOutput(t, "jobs"))

	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)

	dir := t.TempDir()
	if *update {
		dir = imagesDir
	}

	for name, tc := range map[string]struct {
		path   string
		height int
		dark   bool
	}{
		"web-overview":      {path: "/", height: 1180},
		"web-overview-dark": {path: "/", height: 1180, dark: true},
		"web-pool":          {path: "/pools/" + namespace + "/arm64", height: 900},
		"web-jobs":          {path: "/jobs", height: 900},
		"web-job":           {path: "/jobs/" + namespace + "/github-actions-29679400020", height: 1060},
		"web-job-waits":     {path: "/jobs/" + namespace + "/github-actions-29679400040", height: 640},
		"web-machine":       {path: "/machines/" + namespace + "/linux-large-m010", height: 700},
		"web-cluster":       {path: "/clusters/rack-b", height: 520},
		"web-hosts":         {path: "/hosts", height: 460},
		"top-pools":         {path: "/top/pools", height: 200, dark: true},
		"top-jobs":          {path: "/top/jobs", height: 460, dark: true},
	} {
		file, err := filepath.Abs(filepath.Join(dir, name+".png"))
		if err != nil {
			t.Fatal(err)
		}

		args := []string{fmt.Sprintf("--window-size=1280,%d", tc.height), "--screenshot=" + file}
		if tc.dark {
			args = append(args, browser.Dark)
		} else {
			args = append(args, browser.Light)
		}

		browser.Open(t, append(args, server.URL+tc.path)...)

		if info, err := os.Stat(file); err != nil || info.Size() < 10<<10 {
			t.Errorf("picture %s: %v, %v", name, info, err)
		}
	}
}

// logFirstPaint logs the time until a browser first paints a page.
func logFirstPaint(t *testing.T, pages http.Handler, path string) {
	t.Helper()

	const script = `new PerformanceObserver((list) => { for (const e of list.getEntries()) {
		if (e.name === "first-contentful-paint") { fetch("/painted?" + Math.round(e.startTime)); }
	} }).observe({ type: "paint", buffered: true });`

	painted := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/live.js":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write([]byte(script))
		case "/painted":
			select {
			case painted <- r.URL.RawQuery:
			default:
			}
		default:
			pages.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)

	browser.Open(t, "--window-size=1280,900", "--screenshot="+filepath.Join(t.TempDir(), "x.png"), "--timeout=5000", server.URL+path)

	select {
	case ms := <-painted:
		t.Logf("%s: first paint after %s ms", path, ms)
	case <-time.After(time.Minute):
		t.Error("the browser painted nothing")
	}
}
