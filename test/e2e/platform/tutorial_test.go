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

// What the tutorial says, said to a shell, block after block, ends as it says.
func TestTutorial(t *testing.T) {
	newPageWorld(t).runs("../../../docs/start/platform.md", 10, "0 errors, 0 warnings", "nothing is left", "0 objects of")
}

// So does what is said to somebody who writes an adapter; and what the page shows of an answer
// is what is answered.
func TestFirstAdapter(t *testing.T) {
	w := newPageWorld(t)
	page := "../../../docs/guides/first-adapter.md"

	want := []string{"0 errors, 0 warnings", "create: Absent", "delete: DeleteGate", "contact: red@example.com", "nothing is left"}
	for _, shown := range regexp.MustCompile("(?s)```text\n(.*?)```").FindAllStringSubmatch(w.read(page), -1) {
		want = append(want, shown[1])
	}

	w.runs(page, 9, want...)
}

// newPageWorld is a Kubernetes cluster as a reader has one, and a folder.
func newPageWorld(t *testing.T) *world {
	t.Helper()

	for _, tool := range []string{"kubectl", "curl", "openssl", "helm"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%s: make e2e-platform brings it", err)
		}
	}

	w := &world{t: t, dir: t.TempDir(), kube: kube.Start(t, kube.WithControllerManager()), sayf: progress.NewPrinter(t)}
	w.runJobs()

	return w
}

// runs says the blocks of a page to a shell, and looks for what is wanted in what was said. Its
// ports are other ones here, and it finds the programs of this test: hyperfleet-platform, and
// PostgreSQL's as the user that may run them.
func (w *world) runs(page string, atLeast int, want ...string) {
	w.t.Helper()

	text := w.read(page)
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(text, -1)

	if len(blocks) != strings.Count(text, "```sh") || len(blocks) < atLeast {
		w.t.Fatalf("%d blocks of commands were read", len(blocks))
	}

	var commands strings.Builder

	commands.WriteString("set -eu -o pipefail\n")

	for i, block := range blocks {
		fmt.Fprintf(&commands, "echo; echo '--- block %d'\n%s", i+1, block[1])
	}

	ports := w.ports(commands.String())
	w.checkout(ports)

	script := ports.Replace(commands.String())
	script = strings.Replace(script, "make build\n", "", 1)
	script = strings.Replace(script, "export PATH=$PWD/bin:$PATH\n", "", 1)
	w.write("script", script)

	log := filepath.Join(w.dir, "log")

	process, err := procrun.Start(w.t.Context(), procrun.Spec{
		Name: "page", Path: "/bin/bash", Args: []string{filepath.Join(w.dir, "script")}, Dir: w.dir, LogPath: log,
		Env: append(os.Environ(), "PATH="+w.shims()+":"+filepath.Dir(binary)+":"+os.Getenv("PATH"), "no_proxy=*",
			"KUBECONFIG="+w.kube.Kubeconfig(w.t, w.kube.Config), "TMPDIR="+w.tmp()),
	})
	w.must(err)

	deadline := time.AfterFunc(2*patience, func() { _ = process.Kill() })
	defer deadline.Stop()

	err = process.Wait(w.t.Context())

	defer func() {
		if w.t.Failed() {
			w.t.Log(w.read(log))
		}
	}()

	w.must(err)

	for _, want := range want {
		if !strings.Contains(w.read(log), want) {
			w.t.Errorf("the commands do not say %q", want)
		}
	}
}

// What the reference of the API shows at its beginning is so.
func TestFleetAPIPage(t *testing.T) {
	w := &world{t: t, dir: t.TempDir(), sayf: progress.NewPrinter(t)}

	var script strings.Builder

	script.WriteString("set -eu -o pipefail\n")

	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(w.read("../../../docs/reference/fleet-api.md"), -1)
	for i, block := range blocks {
		script.WriteString(block[1])

		// A reader takes longer to the next block than the API to its first answer.
		if i == 0 {
			script.WriteString("until curl -sf http://127.0.0.1:8080/readyz; do sleep 1; done\n")
		}
	}

	script.WriteString("kill $!; wait || true; pg_ctl -D $dir/data stop\n")

	// PostgreSQL's user, who may be another one here, writes into the folder.
	commands := strings.Replace(script.String(), "dir=$(mktemp -d)\n", "dir=$(mktemp -d)\nchmod 777 $dir\n", 1)

	cmd := exec.CommandContext(t.Context(), "/bin/bash", "-c", w.ports(commands).Replace(commands))
	cmd.Dir = w.dir
	cmd.Env = append(os.Environ(), "PATH="+w.shims()+":"+filepath.Dir(binary)+":"+os.Getenv("PATH"), "no_proxy=*", "TMPDIR="+w.tmp())

	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	if !strings.Contains(string(out), "ReconciledAll") {
		t.Errorf("the cluster is not reconciled:\n%s", out)
	}
}

// ports are free ones for those of the tutorial.
func (w *world) ports(text string) *strings.Replacer {
	w.t.Helper()

	pairs := []string{}
	seen := map[string]bool{}

	texts := []string{text}

	for _, file := range []string{"api.yaml", "clusters/adapter.yaml", "nodepools/adapter.yaml", "agents/adapter.yaml"} {
		texts = append(texts, w.read(filepath.Join(samples, file)))
	}

	for _, found := range regexp.MustCompile(`127\.0\.0\.1:(\d+)`).FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		if port := found[1]; !seen[port] {
			seen[port] = true

			pairs = append(pairs, port, strconv.Itoa(loopback.Port(w.t)))
		}
	}

	return strings.NewReplacer(pairs...)
}

// checkout copies the samples to where they are in a checkout.
func (w *world) checkout(ports *strings.Replacer) {
	w.t.Helper()

	root := filepath.Join(w.dir, "deploy", "samples", "platform")
	w.must(os.CopyFS(root, os.DirFS(samples)))
	w.must(filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		return os.WriteFile(path, []byte(ports.Replace(w.read(path))), ownerOnly)
	}))
}

// tmp is a folder that PostgreSQL's user reaches.
func (w *world) tmp() string {
	w.t.Helper()

	dir, err := os.MkdirTemp("", "hyperfleet-tutorial-")
	w.must(err)
	w.must(os.Chmod(dir, 0o711))
	w.t.Cleanup(func() { w.must(os.RemoveAll(dir)) })

	return dir
}

// shims are the programs that a user has, and a test has not by those names.
func (w *world) shims() string {
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
