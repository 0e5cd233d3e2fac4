// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
)

// entry is one entry of a test archive.
type entry struct {
	name, body, link string
	kind             byte
	mode             int64
}

func newArchive(t testing.TB, entries ...entry) []byte {
	t.Helper()

	var b bytes.Buffer

	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)

	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}

		if e.mode == 0 {
			e.mode = 0o755
		}

		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.body)), Format: tar.FormatPAX}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}

		if _, err := w.Write([]byte(e.body)); err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}

	return b.Bytes()
}

// newRunnerArchive returns an archive like that of a real runner: scripts, a link and a large file.
func newRunnerArchive(t *testing.T) []byte {
	t.Helper()

	noise := make([]byte, 1<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(noise)

	script, text := newScript("./run.sh", printListening+printRunning+printCompleted)
	entries := []entry{
		{name: "./", kind: tar.TypeDir},
		{name: script, body: text},
		{name: "./externals/node/lib/npm.js", body: "js", mode: 0o644},
		{name: "bin/Runner.Worker", body: string(noise), mode: 0o4777},
	}

	if !isWindows { // the runner for Windows has no links
		entries = append(entries, entry{name: "./externals/node/bin/npm", kind: tar.TypeSymlink, link: "../lib/npm.js"})
	}

	return newArchive(t, entries...)
}

func formatSHA256(data []byte) string {
	s := sha256.Sum256(data)

	return hex.EncodeToString(s[:])
}

// TestDownload runs machines whose image contains no runner.
func TestDownload(t *testing.T) {
	t.Parallel()

	data := newRunnerArchive(t)
	serve := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"v1"`)
		http.ServeContent(w, r, "runner.tar.gz", time.Time{}, bytes.NewReader(data))
	}

	var breaks, ignores atomic.Int32

	for name, tc := range map[string]struct {
		serve   http.HandlerFunc
		sum     string
		folder  string
		pauses  []time.Duration
		reason  string
		message string
	}{
		"at once":           {serve: serve, reason: api.ReasonJobDone},
		"to another folder": {serve: serve, folder: "/srv/runner", reason: api.ReasonJobDone},
		"interrupted and resumed": {
			serve: func(w http.ResponseWriter, r *http.Request) {
				if n := breaks.Add(1); n <= 2 {
					if n == 2 && r.Header.Get("Range") != "bytes=262144-" {
						t.Errorf("requested range: %q", r.Header.Get("Range"))
					}

					w = &truncatingWriter{ResponseWriter: w, left: 256 << 10}
				}

				serve(w, r)
			},
			pauses: []time.Duration{time.Second, 2 * time.Second}, reason: api.ReasonJobDone,
		},
		"interrupted and restarted": {
			serve: func(w http.ResponseWriter, r *http.Request) {
				r.Header.Del("Range") // a server without ranges

				if ignores.Add(1) == 1 {
					w = &truncatingWriter{ResponseWriter: w, left: 100_000}
				}

				serve(w, r)
			},
			pauses: []time.Duration{time.Second}, reason: api.ReasonJobDone,
		},
		"another file": {serve: serve, sum: formatSHA256([]byte("x")), reason: api.ReasonDownloadFailed, message: "expected " + formatSHA256([]byte("x"))},
		"not found":    {serve: http.NotFound, reason: api.ReasonDownloadFailed, message: "404 Not Found"},
		"server error": {
			serve:  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
			pauses: []time.Duration{1 * time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second},
			reason: api.ReasonDownloadFailed, message: "after 6 attempts",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			routes := http.NewServeMux()
			routes.HandleFunc("GET /v2/runner.tar.gz", tc.serve)

			server := httptest.NewServer(routes)
			defer server.Close()

			m := newMachine(t)
			m.cfg.Runner = api.Runner{DownloadURL: server.URL + "/v2/runner.tar.gz", DownloadSHA256: formatSHA256(data), InstallPath: tc.folder}

			if tc.sum != "" {
				m.cfg.Runner.DownloadSHA256 = tc.sum
			}

			result := m.start(t, t.Context())
			for _, p := range tc.pauses {
				m.clock.waitAndFire(t, p)
			}

			got := m.waitForEnd(t, result)
			if got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Fatalf("%+v\n%s", got, m.log)
			}

			if tc.reason == api.ReasonJobDone {
				m.checkInstalled(t, cmp.Or(tc.folder, "/opt/actions-runner"))

				if want := "Started Downloading Configuring Listening Running Finished"; m.listPhases() != want {
					t.Errorf("phases %q, want %q", m.listPhases(), want)
				}
			}

			if left, _ := filepath.Glob(m.path("/*/.runner-download-*")); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

func (m *machine) checkInstalled(t *testing.T, folder string) {
	t.Helper()

	if !strings.HasPrefix(m.listPhases(), "Started Downloading Configuring Listening") || !strings.Contains(m.log.String(), `"percent":100`) {
		t.Errorf("phases %q, log\n%s", m.listPhases(), m.log)
	}

	info, err := os.Stat(m.path(folder + "/bin/Runner.Worker"))
	if err != nil {
		t.Fatal(err)
	}

	if isWindows { // it has neither links nor modes
		return
	}

	if info.Mode() != 0o755 {
		t.Errorf("mode %v", info.Mode())
	}

	if got := m.read(t, folder+"/externals/node/bin/npm"); got != "js" {
		t.Errorf("through the link: %q", got)
	}
}

// truncatingWriter aborts a response after a number of bytes.
type truncatingWriter struct {
	http.ResponseWriter

	left int
}

func (b *truncatingWriter) Write(p []byte) (int, error) {
	if len(p) > b.left {
		_, _ = b.ResponseWriter.Write(p[:b.left])
		b.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}

	b.left -= len(p)

	return b.ResponseWriter.Write(p)
}

func TestExtractRefuses(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"no gzip":       {[]byte("plain"), "not a gzip file"},
		"cut off":       {newArchive(t, entry{name: "a", body: "aaa"})[:30], "read archive"},
		"absolute":      {newArchive(t, entry{name: "/etc/x"}), "absolute"},
		"upwards":       {newArchive(t, entry{name: "a/../../x"}), `".."`},
		"link out":      {newArchive(t, entry{name: "a/b", kind: tar.TypeSymlink, link: "../../x"}), "leads out"},
		"absolute link": {newArchive(t, entry{name: "a", kind: tar.TypeSymlink, link: "/etc/passwd"}), "absolute"},
		"hard link out": {newArchive(t, entry{name: "a", kind: tar.TypeLink, link: "../x"}), `".."`},
		"device":        {newArchive(t, entry{name: "a", kind: tar.TypeBlock}), "not allowed"},
		"pipe":          {newArchive(t, entry{name: "a", kind: tar.TypeFifo}), "not allowed"},
		"long name":     {newArchive(t, entry{name: strings.Repeat("a/", 600) + "a"}), "too long"},
		"through chained links": {newArchive(t,
			entry{name: "d/e", kind: tar.TypeDir},
			entry{name: "l", kind: tar.TypeSymlink, link: "d/e"},
			entry{name: "l/up", kind: tar.TypeSymlink, link: "../d"},
			entry{name: "m", kind: tar.TypeSymlink, link: "d/e/up/../.."},
			entry{name: "m/evil", body: "x"}), `unpack "m/evil"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if isWindows && name == "through chained links" {
				t.Skip("Wine creates no links")
			}

			outer := t.TempDir()
			err := extractInto(t, outer, tc.data)

			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}

			requireOnlyInner(t, outer)
		})
	}
}

// extractInto extracts an archive into outer/inner.
func extractInto(t *testing.T, outer string, data []byte) error {
	t.Helper()

	file, dir := filepath.Join(t.TempDir(), "a.tar.gz"), filepath.Join(outer, "inner")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	return guest.Extract(file, dir)
}

func requireOnlyInner(t *testing.T, outer string) {
	t.Helper()

	names, err := os.ReadDir(outer)
	if err != nil || len(names) != 1 {
		t.Errorf("written outside: %v, %v", names, err)
	}
}

// FuzzExtract checks that no archive writes files outside of the directory.
func FuzzExtract(f *testing.F) {
	f.Add("a", "b", byte(tar.TypeSymlink), "b/c", "../..", byte(tar.TypeSymlink))
	f.Add("a", "..", byte(tar.TypeSymlink), "a/x", "", byte(tar.TypeReg))
	f.Add("./d/", "", byte(tar.TypeDir), "d/../../x", "", byte(tar.TypeReg))
	f.Add("l", "d/e", byte(tar.TypeSymlink), "l/up", "../d", byte(tar.TypeLink))
	f.Fuzz(func(t *testing.T, name1, link1 string, kind1 byte, name2, link2 string, kind2 byte) {
		var b bytes.Buffer

		gz := gzip.NewWriter(&b)
		w := tar.NewWriter(gz)

		for _, h := range []*tar.Header{
			{Name: name1, Linkname: link1, Typeflag: kind1, Mode: 0o777},
			{Name: name2, Linkname: link2, Typeflag: kind2, Mode: 0o777},
			{Name: name1 + "/evil", Typeflag: tar.TypeReg, Mode: 0o777},
			{Name: name2 + "/evil", Typeflag: tar.TypeReg, Mode: 0o777},
		} {
			_ = w.WriteHeader(h)
		}

		_ = w.Close()
		_ = gz.Close()

		outer := t.TempDir()
		_ = extractInto(t, outer, b.Bytes())
		requireOnlyInner(t, outer)
	})
}
