// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
)

// newRelease returns an archive with a runner that names its release.
func newRelease(t *testing.T, version string) []byte {
	t.Helper()

	script, text := newScript("./run.sh", "echo \"Current runner version: '"+version+"'\"\n"+printListening+printRunning+printCompleted)

	return newArchive(t,
		entry{name: script, body: text},
		entry{name: "./bin/Runner.Listener", body: "#!/bin/sh\n[ \"$1\" = --version ] && echo " + version + "\n"},
	)
}

func TestRelease(t *testing.T) {
	t.Parallel()

	if isWindows {
		t.Skip("the runner's program is a script, which Windows cannot run by this name")
	}

	for name, tc := range map[string]struct {
		image, version, download string
		reason                   string
		downloads                int32
		message                  string
		// output is what the image's runner also runs.
		output string
	}{
		"the image's":      {image: "2.330.0", reason: api.ReasonJobDone},
		"the image has it": {image: "2.330.0", version: "2.330.0", reason: api.ReasonJobDone},
		"the image is old": {image: "2.311.0", version: "2.330.0", download: "2.330.0", downloads: 1, reason: api.ReasonJobDone},
		"the runner logs to its output": {
			image: "2.330.0", version: "2.330.0", output: "echo '[INFO Listener] Exit code 0'", reason: api.ReasonJobDone,
		},
		"no runner in the image": {version: "2.330.0", download: "2.330.0", downloads: 1, reason: api.ReasonJobDone},
		"a broken one":           {image: "exit 1", version: "2.330.0", download: "2.330.0", downloads: 1, reason: api.ReasonJobDone},
		"another one is downloaded": {
			image: "2.311.0", version: "2.330.0", download: "2.329.0", downloads: 1, reason: api.ReasonDownloadFailed,
			message: "the download does not contain the runner's release 2.330.0: the installed runner has the release 2.329.0",
		},
		"one that cannot run is downloaded": {
			image: "2.311.0", version: "2.330.0", download: "2.330.0; exit 3", downloads: 1, reason: api.ReasonDownloadFailed,
			message: "bin/Runner.Listener: exit status 3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			data := newRelease(t, tc.download)

			var downloads atomic.Int32

			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				downloads.Add(1)
				_, _ = w.Write(data)
			}))
			defer server.Close()

			m := newMachine(t)
			m.cfg.Runner = api.Runner{Version: tc.version, DownloadURL: server.URL + "/runner.tar.gz", DownloadSHA256: formatSHA256(data)}

			if tc.image != "" {
				m.write(t, runScript, "echo \"Current runner version: '"+tc.image+"'\"; "+printListening+printRunning+printCompleted)
				m.write(t, "/opt/actions-runner/bin/Runner.Listener", "#!/bin/sh\n[ \"$1\" = --version ] && echo "+tc.image+"\n"+tc.output)
				m.write(t, "/opt/actions-runner/bin/Stale.dll", "")
				m.write(t, "/opt/actions-runner/notes.txt", "")
			}

			got := m.waitForEnd(t, m.start(t, t.Context()))
			if got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) || downloads.Load() != tc.downloads {
				t.Fatalf("%d downloads, %+v\n%s", downloads.Load(), got, m.log)
			}

			_, err := os.Stat(m.path("/opt/actions-runner/bin/Stale.dll"))
			if isKept := err == nil; tc.image != "" && isKept != (tc.downloads == 0) {
				t.Errorf("a file of the image's release is kept: %t", isKept)
			}

			if _, err := os.Stat(m.path("/opt/actions-runner/notes.txt")); tc.image != "" && err != nil {
				t.Errorf("a file that is not the runner's was removed: %v", err)
			}

			want := tc.version
			if want == "" {
				want = tc.image
			}

			if tc.reason == api.ReasonJobDone && got.RunnerVersion != want {
				t.Errorf("reported release %q, want %q", got.RunnerVersion, want)
			}
		})
	}
}

// The URL of a mirror may contain credentials, as a user or as a signed query.
func TestDownloadURLIsNotLogged(t *testing.T) {
	t.Parallel()

	data := newRelease(t, "2.330.0")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }))
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()

	defer server.Close()

	for name, tc := range map[string]struct {
		url, reason string
		delays      []int // in seconds
	}{
		"downloaded":     {server.URL, api.ReasonJobDone, nil},
		"not responding": {closed.URL, api.ReasonDownloadFailed, []int{1, 2, 4, 8, 16}},
	} {
		m := newMachine(t)
		address := strings.Replace(tc.url, "://", "://mirror:hunter2@", 1) + "/runner.tar.gz?signature=hunter3"
		m.cfg.Runner = api.Runner{DownloadURL: address, DownloadSHA256: formatSHA256(data)}

		end := m.start(t, t.Context())
		for _, seconds := range tc.delays {
			m.clock.waitAndFire(t, time.Duration(seconds)*time.Second)
		}

		got := m.waitForEnd(t, end)
		if text := m.log.String() + got.Message; got.Reason != tc.reason || strings.Contains(text, "hunter") {
			t.Errorf("%s: %+v\n%s", name, got, text)
		}
	}
}

// newZip returns a zip file. A name that ends with a slash is a directory.
func newZip(t *testing.T, mode fs.FileMode, names ...string) []byte {
	t.Helper()

	var out bytes.Buffer

	w := zip.NewWriter(&out)

	for _, name := range names {
		header := &zip.FileHeader{Name: name, Method: zip.Deflate}
		header.SetMode(mode)

		isDir := strings.HasSuffix(name, "/") || strings.HasSuffix(name, `\`)
		if strings.HasSuffix(name, "/") {
			header.SetMode(fs.ModeDir | 0o755)
		}

		body, err := w.CreateHeader(header)
		if err == nil && !isDir {
			_, err = body.Write([]byte(name))
		}

		if err != nil {
			t.Fatal(err)
		}
	}

	if err := w.Close(); err != nil {
		t.Fatal(err)
	}

	return out.Bytes()
}

// GitHub's runner for Windows is a zip file. In a file of Windows PowerShell, names have backslashes.
func TestExtractZip(t *testing.T) {
	t.Parallel()

	outer := t.TempDir()
	if err := extractInto(t, outer, newZip(t, 0o644, "run.cmd", "bin/", "bin/Runner.Listener.exe", `externals\node20\node.exe`, `empty\`)); err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]string{
		"run.cmd": "run.cmd", "bin/Runner.Listener.exe": "bin/Runner.Listener.exe", "externals/node20/node.exe": `externals\node20\node.exe`,
	} {
		if got, err := os.ReadFile(filepath.Join(outer, "inner", name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}

	if info, err := os.Stat(filepath.Join(outer, "inner", "empty")); err != nil || !info.IsDir() {
		t.Errorf("an empty folder: %v", err)
	}

	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"upwards":   {newZip(t, 0o644, "../x"), `".."`},
		"absolute":  {newZip(t, 0o644, "/etc/x"), "absolute"},
		"backslash": {newZip(t, 0o644, `a\..\..\x`), `".."`},
		"root":      {newZip(t, 0o644, `\x`), "absolute"},
		"link":      {newZip(t, fs.ModeSymlink|0o777, "a"), "only files and directories"},
		"cut off":   {newZip(t, 0o644, "a", "b")[:40], "read archive"},
	} {
		other := t.TempDir()

		err := extractInto(t, other, tc.data)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, tc.want)
		}

		requireOnlyInner(t, other)
	}
}
