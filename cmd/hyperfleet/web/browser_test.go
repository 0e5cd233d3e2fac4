// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/test/browser"
)

// update writes the pictures of the documentation anew.
var update = flag.Bool("update", false, "write docs/images/web-*.png")

const imagesDir = "../../../docs/images"

// pictures takes a picture of each page, light and dark.
func pictures(t *testing.T, pages http.Handler, namespace string) {
	t.Helper()

	server := httptest.NewServer(pages)
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
		"overview":      {path: "/", height: 1180},
		"overview-dark": {path: "/", height: 1180, dark: true},
		"pool":          {path: "/pools/" + namespace + "/arm64", height: 900},
		"jobs":          {path: "/jobs", height: 900},
		"job":           {path: "/jobs/" + namespace + "/github-actions-29679400020", height: 1060},
		"job-waits":     {path: "/jobs/" + namespace + "/github-actions-29679400040", height: 640},
		"machine":       {path: "/machines/" + namespace + "/linux-large-m010", height: 700},
		"cluster":       {path: "/clusters/rack-b", height: 520},
		"hosts":         {path: "/hosts", height: 460},
	} {
		file, err := filepath.Abs(filepath.Join(dir, "web-"+name+".png"))
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

// paint prints when a browser first shows something of a page.
func paint(t *testing.T, pages http.Handler, path string) {
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
