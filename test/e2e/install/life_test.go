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
	"github.com/hyperfleet/hyperfleet/test/kubelet"
	"github.com/hyperfleet/hyperfleet/test/progress"
)

// tutorial is the first page for new users.
const tutorial = root + "docs/start/runners.md"

// defaultNamespace is the namespace that the pages install to.
const defaultNamespace = "hyperfleet-system"

// defaultOwner is the tag of the machines of every operator. Only one operator runs here.
const defaultOwner = "hyperfleet"

// user is a user with the files of a release in a folder.
type user struct {
	t    *testing.T
	dir  string
	env  []string
	logf func(string, ...any)
	// commands is the number of commands that were run.
	commands int
	// meanwhile is called repeatedly while a command runs. It may be nil.
	meanwhile func()
}

// newUser returns a user with helm, kubectl and hyperfleet in PATH. hyperfleet init uses gitHub as the address of
// GitHub.
func newUser(t *testing.T, env *kube.Env, gitHub string) *user {
	t.Helper()

	u := &user{t: t, dir: t.TempDir(), logf: progress.NewPrinter(t)}
	bin := filepath.Join(u.dir, ".bin")
	u.must(os.Mkdir(bin, 0o755))

	for _, name := range []string{"helm", "kubectl"} {
		path, err := filepath.Abs(root + "bin/" + name)
		u.must(err)
		u.must(os.Symlink(path, filepath.Join(bin, name)))
	}

	shim := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = init ] && set -- \"$@\" --github-url '%s'\nexec '%s' \"$@\"\n", gitHub, releaseProgram(t, "hyperfleet"))
	u.must(os.WriteFile(filepath.Join(bin, "hyperfleet"), []byte(shim), 0o755))

	u.linkCharts("0.1.0")

	u.env = []string{
		"KUBECONFIG=" + env.Kubeconfig(t, env.Config), "HOME=" + u.dir, "PATH=" + bin + ":" + os.Getenv("PATH"), "no_proxy=*",
	}

	return u
}

// linkCharts gives the charts of the release the names that the pages use for a release.
func (u *user) linkCharts(release string) {
	u.t.Helper()

	for _, chart := range []string{"hyperfleet-crds", "hyperfleet", "hyperfleet-platform"} {
		u.must(os.Symlink(releaseFile(u.t, chart+"-"+version+".tgz"), filepath.Join(u.dir, chart+"-"+release+".tgz")))
	}
}

func (u *user) must(err error) {
	u.t.Helper()

	if err != nil {
		u.t.Fatal(err)
	}
}

// writeFile writes a file into the folder.
func (u *user) writeFile(name, text string) {
	u.t.Helper()
	u.must(os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o600))
}

// runCommands runs commands in a shell, fails the test if one fails, and returns their output.
func (u *user) runCommands(commands string) string {
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
	u.logf("%s", commands)

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

// readTutorialBlocks returns the commands of the tutorial that TestTutorial runs. The commands for Proxmox VE, a
// registry and the settings of GitHub are not among them.
func readTutorialBlocks(t *testing.T) []string {
	t.Helper()

	return readBlocks(t, tutorial, "run: TestTutorial.*")
}

// readAllBlocks returns all blocks of commands of a page.
func readAllBlocks(t *testing.T, file string) []string {
	t.Helper()

	return readBlocks(t, file, "(?:run|not run): .+")
}

// readBlocks returns the blocks of commands of a page whose marker matches.
func readBlocks(t *testing.T, file, marker string) []string {
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

// newTutorialUser returns the servers of the tutorial, a user with the tokens for them, and the commands of the
// tutorial for these servers: install, init, apply, and list jobs.
func newTutorialUser(t *testing.T) (*fleet.Fleet, *user, []string) {
	t.Helper()

	f := fleet.New(t, kube.Start(t), fleet.Options{})
	u := newUser(t, f.Env, f.GitHub.URL)
	u.writeFile("pve-token", pve.DefaultSecret)
	u.writeFile("github-token", githubtest.PAT)

	page := readTutorialBlocks(t)
	if len(page) != 4 {
		t.Fatalf("the page has %d blocks of commands, want 4: adapt this test to the page", len(page))
	}

	own := strings.NewReplacer(
		"pve.example.com", f.PVE.URL(), "hyperfleet@pve!operator", pve.DefaultTokenID, "--organization my-org", "--organization "+githubtest.Org,
		regexp.MustCompile(`3C(:[0-9A-F]{2}){31}`).FindString(page[1]), f.PVE.Fingerprint(),
	)
	page[1] = own.Replace(page[1])

	return f, u, page
}

// startOperator runs a pod of the operator, and waits until it serves the webhooks and the reports of machines.
func startOperator(t *testing.T, f *fleet.Fleet) *kubelet.Pod {
	t.Helper()

	operator := runDeployment(t, f.Env, defaultNamespace, "hyperfleet-runners", "HYPERFLEET_RUNNERS_PLATFORM_URLS="+f.GitHub.URL)
	f.Eventually("the operator being ready", func() (bool, string) { return operator.IsReady(t.Context()), operator.Process.LogTail() })
	f.Front.Serve(newOperatorProxy(t, f.Env, operator.Ports["8443"]))

	return operator
}

// TestTutorial runs the commands of the tutorial, with only the names of the servers replaced, from the
// installation to the first finished job.
func TestTutorial(t *testing.T) { //nolint:paralleltest // it counts seconds
	f, u, page := newTutorialUser(t)

	readme, err := os.ReadFile(root + "README.md")
	u.must(err)

	if !strings.Contains(string(readme), "```sh\n"+page[0]+"```") {
		t.Errorf("README.md does not have the install commands of %s:\n%s", tutorial, page[0])
	}

	begun := time.Now()

	u.runCommands(page[0])

	operator := startOperator(t, f)
	u.runCommands(page[1])
	u.setWebhook(f)
	u.runCommands(page[2])
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux", "x64"}})
	f.EventuallyJobsDone(1)

	took, commands := time.Since(begun), u.commands

	if output := u.runCommands(page[3]); !strings.Contains(output, "success") {
		t.Errorf("the output does not have the successful job:\n%s", output)
	}

	u.logf("from helm install to the first finished job: %.1f s, %d commands (goal: 180 s, 6 commands)", took.Seconds(), commands)

	if commands > 6 {
		t.Errorf("%d commands, want at most 6", commands)
	}

	f.OperatorUID, f.Namespace = defaultOwner, "ci"
	f.EventuallyClean()

	if output := operator.Log(t); strings.Contains(output, "orbidden") {
		t.Errorf("the account lacks a permission:\n%s", output)
	}

	u.meanwhile = func() { runJobs(t, f.Env, releaseProgram(t, "hyperfleet"), defaultNamespace) }
	u.runOperationPages()
}

// runOperationPages runs the commands of the pages on backup, upgrade and uninstallation. The next release is the
// same as this one.
func (u *user) runOperationPages() {
	u.t.Helper()

	u.linkCharts("0.2.0")

	for _, page := range []string{"operate/backup", "operate/upgrade", "guides/uninstall"} {
		commands := readBlocks(u.t, root+"docs/"+page+".md", "run: TestTutorial.*")
		if len(commands) == 0 {
			u.t.Errorf("docs/%s.md has no commands", page)
		}

		for i, block := range commands {
			u.runCommands(block)

			if i == 0 && page == "operate/backup" {
				u.runCommands("kubectl delete runnerpools --all -A\n") // the next block restores them
			}
		}
	}

	if saved, err := os.ReadFile(filepath.Join(u.dir, "fleet-backup.yaml")); err != nil || !strings.Contains(string(saved), "kind: RunnerPool") {
		u.t.Errorf("the backup has no RunnerPool (%v)", err)
	}
}

// setWebhook gives GitHub the webhook secret that hyperfleet init has created, as the page says.
func (u *user) setWebhook(f *fleet.Fleet) {
	u.t.Helper()

	text, err := os.ReadFile(filepath.Join(u.dir, "fleet", "secrets.yaml"))
	u.must(err)

	secret := regexp.MustCompile(`secret: "([0-9a-f]{64})"`).FindStringSubmatch(string(text))
	if secret == nil {
		u.t.Fatal("fleet/secrets.yaml has no webhook secret")
	}

	f.GitHub.SetWebhook(control.WebhookTarget{URL: f.Front.URL + "/webhooks/github", Secret: secret[1]})
}
