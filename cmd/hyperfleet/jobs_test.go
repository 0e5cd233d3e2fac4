// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/must"
)

func TestJobsCommand(t *testing.T) {
	t.Parallel()

	namespace := seedFleet(t)

	for _, tc := range []struct {
		name        string
		args        []string
		jobs        int
		first, last string
	}{
		// Queued jobs come first, the longest waiting first; of the completed jobs, the last completed comes first.
		{"all of a namespace", []string{"-n", namespace}, 39, "github-actions-29679400080", "github-actions-29679400025"},
		{"all of all namespaces", []string{"-A"}, 39, "github-actions-29679400080", "github-actions-29679400025"},
		{"of two states", []string{"-n", namespace, "--state", "completed,QUEUED"}, 30, "github-actions-29679400080", "github-actions-29679400025"},
		{"of a pool", []string{"-n", namespace, "--pool", "linux-large", "--state", "running"}, 9, "github-actions-29679400018", "github-actions-29679400010"},
		{"of a pool without jobs", []string{"-n", namespace, "--pool", "arm"}, 0, "", ""},
		{"of the context's namespace", nil, 0, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()

			got := execute(t, env.Config, append([]string{"jobs", "--output", "json"}, tc.args...)...)

			var read struct{ Jobs []jobs.Job }

			must.Do(t, json.Unmarshal([]byte(got.out), &read))

			names := []string{""}

			for _, job := range read.Jobs {
				if job.Namespace == namespace {
					names = append(names, job.Job)
				}
			}

			if len(names)-1 != tc.jobs || names[min(1, tc.jobs)] != tc.first || names[len(names)-1] != tc.last {
				t.Errorf("%v: %q", got.err, names)
			}
		})
	}

	execute(t, env.Config, "jobs", "-n", namespace).expectSuccess(t,
		"JOB ", "WAITING/RUNNING FOR", "github-actions-29679400040", "AtMaximum: RunnerPool linux-large has all", "linux-large-m010")
	execute(t, env.Config, "jobs", "-n", namespace, "-o", "yaml").expectSuccess(t, "jobs:\n- cause:\n", "  platformId: \"29679400040\"\n")
}

// TestJobsGuide runs the commands of docs/guides/jobs.md in a shell.
func TestJobsGuide(t *testing.T) {
	t.Parallel()

	namespace := seedFleet(t)
	page, err := os.ReadFile("../../docs/guides/jobs.md")
	must.Do(t, err)

	_, block, found := strings.Cut(string(page), "<!-- run: TestJobsGuide -->\n```sh\n")
	if !found || namespace != "ci" {
		t.Fatalf("the page has no commands to run, or the namespace is %s", namespace)
	}

	commands, _, _ := strings.Cut(block, "```")
	program, err := filepath.Abs(os.Args[0])
	must.Do(t, err)

	dir := t.TempDir()
	must.Do(t, os.Symlink(program, filepath.Join(dir, "hyperfleet")))

	cmd := exec.CommandContext(t.Context(), "bash", "-c", "set -eu -o pipefail\n"+commands)
	cmd.Env = []string{
		envProgram + "=1", "PATH=" + dir + ":" + os.Getenv("PATH"), "KUBECONFIG=" + env.Kubeconfig(t, env.Config), "HOME=" + dir,
	}

	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	checkContains(t, string(out), "RUNNER", "URL", "https://github.com/", "  job: github-actions-29679400071\n",
		"Job         ci/github-actions-29679400070\n", "Job         ci/github-actions-29679400071\n")
}

func TestJobCommand(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")

	namespace := seedFleet(t)

	for name, tc := range map[string]struct {
		args  []string
		parts []string
	}{
		"that waits": {
			[]string{"github-actions-29679400040"},
			[]string{"Cause", "AtMaximum: ", "Machines that may run the job:\n  linux-large-m003, Bootstrapping", "Waiting"},
		},
		"by the name that -o name prints": {[]string{"runnerjob.hyperfleet.io/github-actions-29679400010"}, []string{"State       Running, "}},
		"that runs":                       {[]string{"29679400010"}, []string{"State       Running, ", "Machine     linux-large-m010, Ready, VM 100110 on node rack-a-3"}},
		"that is over, by its address": {
			[]string{"https://github.com/acme/checkout/actions/runs/10683749869/job/29679400020?pr=1"},
			[]string{"Completed (failure)", "Destroyed", "Log, from RunnerLog github-actions-29679400020-log:\n  √ Connected"},
		},
		"for programs": {[]string{"29679400020", "--output", "json"}, []string{`"log": "√ Connected`, `"moment": "Destroyed"`}},
		"with its log in a store": {[]string{"29679400024"}, []string{
			"No log: the log is s3://logs/ci/linux-a.log at https://s3.example.com; to read it, set AWS_ACCESS_KEY_ID",
		}},
		"with its log in a store, for programs": {
			[]string{"29679400024", "--output", "json"}, []string{`"logUrl": "s3://logs/ci/linux-a.log"`, `"log": null`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			execute(t, env.Config, append([]string{"job", "-n", namespace}, tc.args...)...).expectSuccess(t, tc.parts...)
		})
	}
}

func TestJobCommandsFail(t *testing.T) {
	t.Parallel()

	namespace := seedFleet(t)
	unprivileged := env.User(t, "unprivileged")

	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no such job":           {[]string{"job", "29679400099", "-n", namespace}, 1, "similar jobs are:\n  " + namespace + "/github-actions-296794000"},
		"not in this namespace": {[]string{"job", "zzzzzz"}, 1, `found no job "zzzzzz" in namespace default`},
		"no kubeconfig":         {[]string{"jobs", "--kubeconfig", filepath.Join(t.TempDir(), "none")}, 1, "read kubeconfig"},
		"an unknown context":    {[]string{"jobs", "--context", "mars"}, 1, `"mars"`},
		"no id":                 {[]string{"job"}, 2, "give one job"},
		"two ids":               {[]string{"job", "a", "b"}, 2, "give one job"},
		"an id to the list":     {[]string{"jobs", "gh-7"}, 2, "`hyperfleet job gh-7`"},
		"an unknown flag":       {[]string{"jobs", "--colour"}, 2, "--colour"},
		"an unknown state":      {[]string{"jobs", "--state", "lost"}, 2, `unknown state "lost": use waiting, queued, running or completed`},
		"an unknown output":     {[]string{"jobs", "-o", "xml"}, 2, `invalid argument "xml" for "-o, --output" flag: use table, wide,`},
		"two scopes":            {[]string{"jobs", "-A", "-n", "ci"}, 2, "mutually exclusive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := execute(t, env.Config, tc.args...)
			got.expectFailure(t, tc.code, tc.want)

			if got.out != "" {
				t.Errorf("output is %q", got.out)
			}
		})
	}

	execute(t, unprivileged, "jobs", "-n", namespace).expectFailure(t, cli.ExitFailed, "is forbidden")
}
