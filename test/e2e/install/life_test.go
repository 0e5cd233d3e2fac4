// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/progress"
)

// tutorial is what a new user reads.
const tutorial = root + "docs/start/runners.md"

// usual is the namespace that the pages install to.
const usual = "hyperfleet-system"

// anyOperator is on every machine of an operator: here is one alone.
const anyOperator = "hyperfleet"

// user is somebody in a folder with the files of a release.
type user struct {
	t    *testing.T
	dir  string
	env  []string
	sayf func(string, ...any)
	// commands that were typed so far.
	commands int
	// meanwhile is done again and again while a command runs; may be nil.
	meanwhile func()
}

// newUser has helm, kubectl and hyperfleet on the path. gitHub is where hyperfleet init finds
// GitHub, which has another address for everybody else.
func newUser(t *testing.T, env *kube.Env, gitHub string) *user {
	t.Helper()

	u := &user{t: t, dir: t.TempDir(), sayf: progress.NewPrinter(t)}
	bin := filepath.Join(u.dir, ".bin")
	u.must(os.Mkdir(bin, 0o755))

	for _, name := range []string{"helm", "kubectl"} {
		path, err := filepath.Abs(root + "bin/" + name)
		u.must(err)
		u.must(os.Symlink(path, filepath.Join(bin, name)))
	}

	shim := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = init ] && set -- \"$@\" --github-url '%s'\nexec '%s' \"$@\"\n", gitHub, program(t, "hyperfleet"))
	u.must(os.WriteFile(filepath.Join(bin, "hyperfleet"), []byte(shim), 0o755))

	for _, chart := range []string{"hyperfleet-crds", "hyperfleet", "hyperfleet-platform"} {
		u.must(os.Symlink(released(t, chart+"-"+version+".tgz"), filepath.Join(u.dir, chart+"-0.1.0.tgz")))
	}

	u.env = []string{
		"KUBECONFIG=" + env.Kubeconfig(t, env.Config), "HOME=" + u.dir, "PATH=" + bin + ":" + os.Getenv("PATH"), "no_proxy=*",
	}

	return u
}

func (u *user) must(err error) {
	u.t.Helper()

	if err != nil {
		u.t.Fatal(err)
	}
}

// file writes a file of the user's.
func (u *user) file(name, text string) {
	u.t.Helper()
	u.must(os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o600))
}

// types has a shell run commands, fails the test if one fails, and gives what they said.
func (u *user) types(commands string) string {
	u.t.Helper()

	cmd := exec.CommandContext(u.t.Context(), "/bin/bash", "-eu", "-o", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = u.dir, u.env

	var (
		out   []byte
		err   error
		ended = make(chan struct{})
	)

	go func() {
		defer close(ended)

		out, err = cmd.CombinedOutput()
	}()

	u.wait(ended)

	if err != nil {
		u.t.Fatalf("%s: %v\n%s", commands, err, out)
	}

	u.commands += len(regexp.MustCompile(`(?m)^\S`).FindAllString(commands, -1))
	u.sayf("%s", commands)

	return string(out)
}

// wait waits for the end of a command.
func (u *user) wait(ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-time.After(50 * time.Millisecond):
			if u.meanwhile != nil {
				u.meanwhile()
			}
		}
	}
}

// tutorialBlocks are the commands of the tutorial that TestTutorial types, without those for Proxmox VE, a
// registry and the settings of GitHub.
func tutorialBlocks(t *testing.T) []string {
	t.Helper()

	return blocksOf(t, tutorial, "run: TestTutorial.*")
}

// blocks are the commands of a page.
func blocks(t *testing.T, file string) []string {
	t.Helper()

	return blocksOf(t, file, "(?:run|not run): .+")
}

// blocksOf are the commands of a page whose marker says that.
func blocksOf(t *testing.T, file, marker string) []string {
	t.Helper()

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	var out []string

	for _, block := range regexp.MustCompile("(?s)\n( *)<!-- (?-s:"+marker+") -->\n *```sh\n(.*?\n) *```").FindAllStringSubmatch(string(text), -1) {
		out = append(out, strings.ReplaceAll("\n"+block[2], "\n"+block[1], "\n")[1:])
	}

	return out
}

// A new user goes by the page, word for word but for the names of their own servers, from
// nothing to the first finished job.
func TestTutorial(t *testing.T) { //nolint:paralleltest // it counts seconds
	f := fleet.New(t, kube.Start(t), fleet.Options{})
	u := newUser(t, f.Env, f.GitHub.URL)
	u.file("pve-token", pve.DefaultSecret)
	u.file("github-token", githubtest.PAT)

	own := strings.NewReplacer(
		"pve.example.com", f.PVE.URL(), "hyperfleet@pve!operator", pve.DefaultTokenID, "--organization my-org", "--organization "+githubtest.Org,
		regexp.MustCompile(`3C(:[0-9A-F]{2}){31}`).FindString(strings.Join(tutorialBlocks(t), "")), f.PVE.Fingerprint(),
	)

	page := tutorialBlocks(t)
	if len(page) != 4 {
		t.Fatalf("the page has %d blocks of commands: see which of them needs what", len(page))
	}

	readme, err := os.ReadFile(root + "README.md")
	u.must(err)

	if !strings.Contains(string(readme), "```sh\n"+page[0]+"```") {
		t.Errorf("README.md installs in another way than %s:\n%s", tutorial, page[0])
	}

	begun := time.Now()

	u.types(page[0])

	operator := run(t, f.Env, usual, "hyperfleet-runners",
		"HYPERFLEET_RUNNERS_PLATFORM_URLS="+f.GitHub.URL)
	f.Eventually("the operator being ready", func() (bool, string) { return operator.IsReady(t.Context()), operator.Process.LogTail() })
	f.Front.Serve(trusting(t, f.Env, operator.Ports["8443"]))
	u.types(own.Replace(page[1]))
	u.webhook(f)
	u.types(page[2])
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux", "x64"}})
	f.EventuallyJobsDone(1)

	took, commands := time.Since(begun), u.commands

	if said := u.types(page[3]); !strings.Contains(said, "success") {
		t.Errorf("the job is not told of:\n%s", said)
	}

	u.sayf("from helm install to the first finished job: %.1f s, %d commands (goal: 180 s, 6 commands)", took.Seconds(), commands)

	if commands > 6 {
		t.Errorf("it took %d commands", commands)
	}

	f.OperatorUID, f.Namespace = anyOperator, "ci"
	f.EventuallyClean()

	if said := operator.Log(t); strings.Contains(said, "orbidden") {
		t.Errorf("the account lacks a right:\n%s", said)
	}

	u.meanwhile = func() { playJobs(t, f.Env, program(t, "hyperfleet"), usual) }
	u.operates()
}

// operates does what the pages on operating it say, to the end. The next release is this one.
func (u *user) operates() {
	u.t.Helper()

	for _, chart := range []string{"hyperfleet-crds", "hyperfleet", "hyperfleet-platform"} {
		u.must(os.Symlink(released(u.t, chart+"-"+version+".tgz"), filepath.Join(u.dir, chart+"-0.2.0.tgz")))
	}

	for _, page := range []string{"operate/backup", "operate/upgrade", "guides/uninstall"} {
		commands := blocksOf(u.t, root+"docs/"+page+".md", "run: TestTutorial.*")
		if len(commands) == 0 {
			u.t.Errorf("docs/%s.md has no commands", page)
		}

		for _, block := range commands {
			u.types(block)
		}
	}

	if saved, err := os.ReadFile(filepath.Join(u.dir, "fleet-backup.yaml")); err != nil || !strings.Contains(string(saved), "kind: RunnerPool") {
		u.t.Errorf("the backup lacks pools (%v)", err)
	}
}

// webhook gives GitHub the secret that hyperfleet init has made, as the page says.
func (u *user) webhook(f *fleet.Fleet) {
	u.t.Helper()

	text, err := os.ReadFile(filepath.Join(u.dir, "fleet", "secrets.yaml"))
	u.must(err)

	secret := regexp.MustCompile(`secret: "([0-9a-f]{64})"`).FindStringSubmatch(string(text))
	if secret == nil {
		u.t.Fatal("there is no secret for the webhook")
	}

	f.GitHub.SetWebhook(control.WebhookTarget{URL: f.Front.URL + "/webhooks/github", Secret: secret[1]})
}
