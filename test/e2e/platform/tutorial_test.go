// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/pgproc"
	"github.com/hyperfleet/hyperfleet/test/progress"
)

// TestTutorial runs all blocks of the tutorial in one shell, and checks the output.
func TestTutorial(t *testing.T) {
	newPageFixture(t).runPage("../../../docs/start/platform.md", 10, "0 errors, 0 warnings", "nothing is left", "0 objects of")
}

// TestFirstAdapter does the same with the guide for authors of adapters. The output must contain the
// responses that the page shows.
func TestFirstAdapter(t *testing.T) {
	w := newPageFixture(t)
	page := "../../../docs/guides/first-adapter.md"

	want := []string{"0 errors, 0 warnings", "create: Absent", "delete: DeleteGate", "contact: red@example.com", "nothing is left"}
	for _, shown := range regexp.MustCompile("(?s)```text\n(.*?)```").FindAllStringSubmatch(w.readFile(page), -1) {
		want = append(want, shown[1])
	}

	w.runPage(page, 9, want...)
}

// newPageFixture starts a Kubernetes cluster, as a reader of the page has one, and creates a folder.
func newPageFixture(t *testing.T) *fixture {
	t.Helper()

	for _, tool := range []string{"kubectl", "curl", "openssl", "helm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s is missing: make e2e-platform installs it", err)
		}
	}

	w := &fixture{t: t, dir: t.TempDir(), kube: kube.Start(t, kube.WithControllerManager()), logf: progress.NewPrinter(t)}
	w.finishJobs()

	return w
}

// runPage runs the blocks of a page in a shell, and checks that the output contains the texts. It replaces
// the ports of the page, and puts the programs of this test and PostgreSQL's programs, which must run as
// another user, on the PATH.
func (w *fixture) runPage(page string, atLeast int, want ...string) {
	w.t.Helper()

	text := w.readFile(page)
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1)

	if len(blocks) != strings.Count(text, "```sh") || len(blocks) < atLeast {
		w.t.Fatalf("found %d blocks of commands, want all blocks of the page", len(blocks))
	}

	var commands strings.Builder

	commands.WriteString("set -eu -o pipefail\n")

	for i, block := range blocks {
		fmt.Fprintf(&commands, "echo; echo '--- block %d'\n%s", i+1, block[1])
	}

	ports := w.newPortReplacer(commands.String())
	w.createCheckout(ports)

	script := ports.Replace(commands.String())
	script = strings.Replace(script, "make build\n", "", 1)
	script = strings.Replace(script, "export PATH=$PWD/bin:$PATH\n", "", 1)
	w.writeFile("script", script)

	log := filepath.Join(w.dir, "log")

	process, err := procrun.Start(w.t.Context(), procrun.Spec{
		Name: "page", Path: "/bin/bash", Args: []string{filepath.Join(w.dir, "script")}, Dir: w.dir, LogPath: log,
		Env: append(os.Environ(), "PATH="+w.createShims()+":"+filepath.Dir(binary)+":"+os.Getenv("PATH"), "no_proxy=*",
			"KUBECONFIG="+w.kube.Kubeconfig(w.t, w.kube.Config), "TMPDIR="+w.createTempDir()),
	})
	w.must(err)

	deadline := time.AfterFunc(2*waitTimeout, func() { _ = process.Kill() })
	defer deadline.Stop()

	err = process.Wait(w.t.Context())

	defer func() {
		if w.t.Failed() {
			w.t.Log(w.readFile(log))
		}
	}()

	w.must(err)

	for _, want := range want {
		if !strings.Contains(w.readFile(log), want) {
			w.t.Errorf("the output of the commands does not contain %q", want)
		}
	}
}

// TestFleetAPIPage runs the blocks at the beginning of the API's reference.
func TestFleetAPIPage(t *testing.T) {
	w := &fixture{t: t, dir: t.TempDir(), logf: progress.NewPrinter(t)}

	var script strings.Builder

	script.WriteString("set -eu -o pipefail\n")

	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(w.readFile("../../../docs/reference/fleet-api.md"), -1)
	for i, block := range blocks {
		script.WriteString(block[1])

		// A reader takes longer to the next block than the API takes to start.
		if i == 0 {
			script.WriteString("until curl -sf http://127.0.0.1:8080/readyz; do sleep 1; done\n")
		}
	}

	script.WriteString("kill $!; wait || true; pg_ctl -D $dir/data stop\n")

	// PostgreSQL may run as another user here, and writes into the folder.
	commands := strings.Replace(script.String(), "dir=$(mktemp -d)\n", "dir=$(mktemp -d)\nchmod 777 $dir\n", 1)

	cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", w.newPortReplacer(commands).Replace(commands))
	cmd.Dir = w.dir
	cmd.Env = append(os.Environ(), "PATH="+w.createShims()+":"+filepath.Dir(binary)+":"+os.Getenv("PATH"), "no_proxy=*", "TMPDIR="+w.createTempDir())

	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	if !strings.Contains(string(out), "ReconciledAll") {
		t.Errorf("the cluster is not reconciled:\n%s", out)
	}

	if strings.Count(string(out), `"code":"HYPERFLEET-VAL-106"`) != 1 {
		t.Errorf("the second change did not fail:\n%s", out)
	}
}

// newPortReplacer replaces the ports of a text and of the samples with free ports.
func (w *fixture) newPortReplacer(text string) *strings.Replacer {
	w.t.Helper()

	pairs := []string{}
	seen := map[string]bool{}

	texts := []string{text}

	for _, file := range []string{"api.yaml", "clusters/adapter.yaml", "nodepools/adapter.yaml", "agents/adapter.yaml"} {
		texts = append(texts, w.readFile(filepath.Join(samples, file)))
	}

	for _, found := range regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		if port := found[1]; !seen[port] {
			seen[port] = true

			pairs = append(pairs, port, strconv.Itoa(loopback.Port(w.t)))
		}
	}

	return strings.NewReplacer(pairs...)
}

// createCheckout copies the samples to their folder in a checkout.
func (w *fixture) createCheckout(ports *strings.Replacer) {
	w.t.Helper()

	root := filepath.Join(w.dir, "deploy", "samples", "platform")
	w.must(os.CopyFS(root, os.DirFS(samples)))
	w.must(filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		return os.WriteFile(path, []byte(ports.Replace(w.readFile(path))), ownerOnly)
	}))
}

// createTempDir creates a folder that PostgreSQL's user can enter.
func (w *fixture) createTempDir() string {
	w.t.Helper()

	dir, err := os.MkdirTemp("", "hyperfleet-tutorial-")
	w.must(err)
	w.must(os.Chmod(dir, 0o711))
	w.t.Cleanup(func() { w.must(os.RemoveAll(dir)) })

	return dir
}

// createShims creates the programs that are on a reader's PATH but not on that of the test.
func (w *fixture) createShims() string {
	w.t.Helper()

	dir := filepath.Join(w.dir, "shims")
	w.must(os.MkdirAll(dir, 0o755))

	shim := func(name, script string) {
		w.must(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}

	programs, err := pgproc.FindBinaries()
	w.must(err)

	as, before := "", ""

	if current, err := user.Current(); err == nil && current.Uid == "0" {
		as = "runuser -u postgres -- "
		// -D DIR comes first.
		before = "chmod 711 \"$PWD\"\n[ \"$1\" = -D ] && mkdir -p \"$2\" && touch postgres.log && chown postgres \"$2\" postgres.log\n"
	}

	for _, name := range []string{"initdb", "pg_ctl", "createdb"} {
		shim(name, before+"exec "+as+filepath.Join(programs, name)+` "$@"`)
	}

	return dir
}
