// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bradleyfalzon/ghinstallation/v2"
	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgesim"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/test/defaults"
)

// writeFile writes a file of one line.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	requireNoError(t, os.WriteFile(name, []byte(text+"\n"), 0o600))
	return name
}

// The test starts the programs as the demo and the machines do.
func TestGitHubProcesses(t *testing.T) { //nolint:tparallel // its subtests share a server, one after the other
	t.Parallel()
	hooks := githubtest.NewReceiver(t)
	p := startProgram(t, "GITHUB_REPOSITORY", "github", "--org", "octo-org", "--webhook-url", hooks.URL, "--webhook-secret-file", writeFile(t, "of the hook"),
		"--lost-timeout", "1s")
	base := p.exports["GITHUB_API_URL"] + "/"
	api, err := gh.NewClient(gh.WithAuthToken(p.exports["GITHUB_TOKEN"]), gh.WithURLs(&base, &base))
	requireNoError(t, err)
	self, err := os.Executable()
	requireNoError(t, err)
	runner := func(script string, args ...string) *exec.Cmd { // each runner has its own installation
		root := t.TempDir()
		requireNoError(t, simrunner.Layout(root, self, true))
		return newCommand(t, filepath.Join(root, simrunner.InstallDir, script), args...)
	}
	queue := func(command string) {
		p.queueJob(t, control.JobSpec{Repo: "octo-org/demo", Labels: []string{"self-hosted", "vm"}, Command: command})
	}
	jitBlob := func(name string) string {
		made, _, err := api.Actions.GenerateOrgJITConfig(t.Context(), "octo-org",
			&gh.GenerateJITConfigRequest{Name: name, RunnerGroupID: 1, Labels: []string{"self-hosted", "vm"}})
		requireNoError(t, err)
		return made.GetEncodedJITConfig()
	}
	t.Run("run.sh --jitconfig", func(t *testing.T) {
		queue("echo worked")
		out, err := runner("run.sh", "--jitconfig", jitBlob("one")).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "worked") || !strings.Contains(string(out), "Listening for Jobs") {
			t.Fatalf("run.sh: %v\n%s", err, out)
		}
	})
	t.Run("JIT configuration from the environment", func(t *testing.T) {
		queue("true")
		run := runner("run.sh")
		run.Env = append(run.Env, "ACTIONS_RUNNER_INPUT_JITCONFIG="+jitBlob("env"))
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("run.sh: %v\n%s", err, out)
		}
	})
	t.Run("config.sh, then run.sh", func(t *testing.T) {
		queue("true")
		token, _, err := api.Actions.CreateOrganizationRegistrationToken(t.Context(), "octo-org")
		requireNoError(t, err)
		config := runner("config.sh", "--url", p.exports["GITHUB_SERVER_URL"]+"/octo-org", "--token", token.GetToken(), "--name", "two",
			"--labels", "vm", "--ephemeral", "--unattended", "--disableupdate")
		if out, err := config.CombinedOutput(); err != nil {
			t.Fatalf("config.sh: %v\n%s", err, out)
		}
		if out, err := newCommand(t, filepath.Join(filepath.Dir(config.Path), "run.sh")).CombinedOutput(); err != nil {
			t.Fatalf("run.sh: %v\n%s", err, out)
		}
	})
	t.Run("SIGTERM ends an idle runner", func(t *testing.T) {
		run := runner("run.sh", "--jitconfig", jitBlob("idle"))
		requireNoError(t, run.Start())
		p.waitUntil(t, "it is online", func(st control.State) bool { return len(st.Runners) == 1 && st.Runners[0].Online })
		requireNoError(t, run.Process.Signal(syscall.SIGTERM))
		if err := run.Wait(); err != nil {
			t.Errorf("run.sh after SIGTERM: %v", err)
		}
	})
	t.Run("a killed runner loses its job", func(t *testing.T) {
		queue("exec sleep 60")
		if job := p.killRunner(t, runner("run.sh", "--jitconfig", jitBlob("killed"))); job.RunnerName != "killed" {
			t.Errorf("job: %+v", job)
		}
	})
	state := p.waitUntil(t, "all webhooks are delivered", hasNoPendingWebhooks)
	if want := 3 * len(state.Jobs); state.Webhooks.Delivered != want {
		t.Errorf("%d webhooks were delivered, want %d", state.Webhooks.Delivered, want)
	}
	first := hooks.Webhooks()[0]
	requireNoError(t, gh.ValidateSignature(first.Header.Get(gh.SHA256SignatureHeader), first.Body, []byte("of the hook")))
	p.requireExitCode(t, 0)
}

func TestGitHubWithAppAndViolation(t *testing.T) {
	t.Parallel()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	requireNoError(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	p := startProgram(t, "GITHUB_REPOSITORY", "github", "--repo", "octo-org/octo-repo,octo-org/b", "--app-id", "4711", "--app-key-file", writeFile(t, string(text)),
		"--pat-file", writeFile(t, "ghp_mine"), "--faults", "webhookLost=0.5,jitDelay=1ms", "--seed", "3")
	if p.exports["GITHUB_TOKEN"] != "ghp_mine" || p.exports["GITHUB_APP_INSTALLATION_ID"] != "50000001" {
		t.Errorf("exports: %v", p.exports)
	}
	app, err := ghinstallation.New(http.DefaultTransport, 4711, 50000001, text)
	requireNoError(t, err)
	app.BaseURL = p.exports["GITHUB_API_URL"]
	base := app.BaseURL + "/"
	api, err := gh.NewClient(gh.WithTransport(app), gh.WithURLs(&base, &base))
	requireNoError(t, err)
	_, _, err = api.Actions.ListRunners(t.Context(), "octo-org", "octo-repo", nil)
	requireNoError(t, err)
	_, _, err = api.Actions.ListArtifacts(t.Context(), "octo-org", "octo-repo", nil)
	if err == nil || !strings.Contains(err.Error(), "501") {
		t.Errorf("a call that is not simulated: %v", err)
	}

	p.requireExitCode(t, 3)

	if !strings.Contains(p.stderr.String(), "contract violations") {
		t.Errorf("standard error: %s", p.stderr)
	}
}

// createRunner creates a runner of the group acme and returns its token.
func createRunner(t *testing.T, base string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/api/v4/user/runners",
		strings.NewReader(`{"runner_type":"group_type","group_id":35,"description":"vm","tag_list":["vm"]}`))
	requireNoError(t, err)
	req.Header = http.Header{"Private-Token": {"glpat-mine"}, "Content-Type": {"application/json"}}
	resp, err := http.DefaultClient.Do(req)
	requireNoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	var made struct{ Token string }
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || made.Token == "" {
		t.Fatalf("create a runner: %s, %v", resp.Status, err)
	}
	return made.Token
}

func TestGitLabProcesses(t *testing.T) { //nolint:tparallel // its subtests share a server, one after the other
	t.Parallel()
	hooks := gitlabtest.NewReceiver(t)
	dir := t.TempDir()
	p := startProgram(t, "GITLAB_PROJECT", "gitlab", "--project", "acme/app,acme/b", "--webhook-url", hooks.URL, "--webhook-secret-file", writeFile(t, "of the hook"),
		"--token-file", writeFile(t, "glpat-mine"), "--lost-timeout", "1s", "--faults", "jitDelay=1ms", "--seed", "3")
	if p.exports["GITLAB_TOKEN"] != "glpat-mine" || p.exports["GITLAB_PROJECT"] != "acme/app" || p.exports["CI_SERVER_URL"] != p.exports["GITLAB_URL"] {
		t.Errorf("exports: %v", p.exports)
	}
	image := t.TempDir()
	if out, err := newCommand(t, "", "image", "--link", image).CombinedOutput(); err != nil {
		t.Fatalf("image: %v\n%s", err, out)
	}
	runner := func() *exec.Cmd {
		given := createRunner(t, p.exports["GITLAB_URL"])
		cmd := newCommand(t, filepath.Join(image, "usr", "bin", "gitlab-runner"), "run-single", "--url", p.exports["GITLAB_URL"],
			"--executor", "shell", "--builds-dir", filepath.Join(dir, "builds"), "--max-builds", "1")
		cmd.Env = append(cmd.Env, "CI_SERVER_TOKEN="+given, "RUNNER_ENV=CI_SERVER_TOKEN=", "RUNNER_NAME=vm")
		return cmd
	}
	queue := func(command string) {
		p.queueJob(t, control.JobSpec{Repo: "acme/app", Labels: []string{"vm"}, Command: command})
	}
	t.Run("one job", func(t *testing.T) {
		queue("test -z \"$CI_SERVER_TOKEN\" && test $CI_PROJECT_PATH = acme/app")
		out, err := runner().CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Job succeeded") {
			t.Fatalf("run-single: %v\n%s", err, out)
		}
	})
	t.Run("SIGQUIT lets a job end", func(t *testing.T) {
		name := filepath.Join(dir, "go")
		queue(fmt.Sprintf("while [ ! -e %s ]; do sleep 0.02; done", name))
		run := runner()
		requireNoError(t, run.Start())
		p.waitUntil(t, "the job runs", hasJobs("in_progress", 1))
		requireNoError(t, run.Process.Signal(syscall.SIGQUIT))
		requireNoError(t, os.WriteFile(name, nil, 0o600))
		if err := run.Wait(); err != nil {
			t.Errorf("run-single after SIGQUIT: %v", err)
		}
		p.waitUntil(t, "the job is over", func(st control.State) bool { return st.Jobs[1].Conclusion == "success" })
	})
	t.Run("a killed runner loses its job", func(t *testing.T) {
		queue("exec sleep 5")
		if job := p.killRunner(t, runner()); job.RunnerName != "vm" {
			t.Errorf("job: %+v", job)
		}
	})
	p.waitUntil(t, "all webhooks are delivered", hasNoPendingWebhooks)
	if got := hooks.Webhooks(); len(got) != 12 || got[0].Header.Get("X-Gitlab-Token") != "of the hook" {
		t.Errorf("%d webhooks were delivered", len(got))
	}
	p.requireExitCode(t, 0)
}

func TestGenericProcesses(t *testing.T) {
	t.Parallel()
	hooks := generictest.NewReceiver(t, nil)
	p := startProgram(t, "FORGESIM_JOBS_URL", "generic", "--source", "scans", "--webhook-url", hooks.URL, "--webhook-secret-file", writeFile(t, generictest.Secret),
		"--updates", "--faults", "serverError=0.1")
	job := p.queueJob(t, control.JobSpec{Command: "echo hello; exit 4", Labels: []string{"x"}})
	work := newCommand(t, "", "generic-job")
	work.Env = append(work.Env, "HYPERFLEET_JOB_ID="+job.Key, "HYPERFLEET_JOB_NAME=build", "HYPERFLEET_JOB_SOURCE=scans",
		"HYPERFLEET_JOB_LABELS=x", "HYPERFLEET_JOB_URL="+p.exports["FORGESIM_JOBS_URL"]+"/jobs/"+job.Key)
	if output, err := work.CombinedOutput(); work.ProcessState.ExitCode() != 4 || !strings.Contains(string(output), "hello") {
		t.Errorf("%v: %s", err, output)
	}
	state := p.waitUntil(t, "three webhooks are delivered", func(st control.State) bool { return st.Webhooks.Delivered == 3 })
	if state.Jobs[0].Conclusion != "failure" {
		t.Errorf("%+v", state)
	}
	for i, want := range []string{`"source":"scans"`, `"running"`, `"completed"`} {
		if got := hooks.Webhooks()[i]; !strings.Contains(string(got.Body), want) || got.Header.Get("Webhook-Signature") == "" {
			t.Errorf("webhook %d contains %s", i, got.Body)
		}
	}

	p.requireExitCode(t, 0)

	if !strings.Contains(p.stderr.String(), "generic sender on http://127.0.0.1:") {
		t.Errorf("no line that it is ready:\n%s", p.stderr)
	}
}

// forgesim buildkite prints its addresses and serves until it is stopped.
func TestBuildkiteProcess(t *testing.T) {
	t.Parallel()
	p := startProgram(t, "BUILDKITE_ORGANIZATION_SLUG", "buildkite", "--organization", "octo", "--queue", "ci,mac",
		"--token-file", writeFile(t, "bkct_x"), "--faults", "webhookLost=0.5")
	if !strings.HasSuffix(p.exports["BUILDKITE_AGENT_ENDPOINT"], "/v3") || p.exports["BUILDKITE_AGENT_TOKEN"] != "bkct_x" ||
		p.exports["BUILDKITE_ORGANIZATION_SLUG"] != "octo" {
		t.Errorf("exports: %v", p.exports)
	}
	p.queueJob(t, control.JobSpec{Repo: "octo/app", Labels: []string{"queue=mac"}})
	p.requireExitCode(t, 0)
}

// TestDefaultsOfFlags checks the defaults of all flags of the program.
func TestDefaultsOfFlags(t *testing.T) {
	t.Parallel()
	var all []defaults.Setting
	for _, site := range []string{"github", "gitlab", "buildkite", "forgejo", "gitea", "generic", "image"} {
		var out bytes.Buffer
		forgesim.Run(t.Context(), []string{site, "-help"}, &out, &out)
		all = append(all, defaults.OfUsage("forgesim "+site, out.String())...)
	}
	defaults.Check(t, "flag forgesim", all)
}
