// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	sim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

// missingJob is the ID of a job that does not exist.
const missingJob = "00000000-0000-4000-8000-000000000000"

// buildkiteFixture has a queued job, and the configuration of a machine for it.
type buildkiteFixture struct {
	*buildkitetest.Server

	t      *testing.T
	job    control.Job
	config *api.Config
	m      *machine
}

// createRepository creates a Git repository with a commit on main.
func createRepository(t *testing.T) string {
	t.Helper()

	dir := t.TempDir()
	git := exe.FindProgram(t, "git", "git")

	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("checked out\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"add", "hello"},
		{"-c", "user.name=Octo Cat", "-c", "user.email=octocat@example.com", "commit", "-q", "-m", "Say hello"},
	} {
		if out, err := exec.Command(git, append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}

	return dir
}

// newBuildkiteFixture queues a job with the command.
func newBuildkiteFixture(t *testing.T, command string) *buildkiteFixture {
	t.Helper()

	w := &buildkiteFixture{t: t, Server: buildkitetest.New(t, sim.Options{Repository: createRepository(t)})}
	w.job = w.Queue(control.JobSpec{Labels: []string{"queue=default"}, Command: command})[0]

	runner, provider := openProvider(t, buildkite.Platform{},
		v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Endpoint: w.Endpoint}},
		v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: buildkitetest.Organization}}, buildkitetest.Token)
	if err := provider.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	w.config = newConfig(t, provider, runner, &workload.Job{ID: w.job.Key, Platform: runner.Platform})

	return w
}

// waitUntilRunning waits until the log shows that the job runs.
func (w *buildkiteFixture) waitUntilRunning() {
	w.t.Helper()
	w.WaitUntil("the job runs", func(control.State) bool {
		_, log := w.JobLog(w.job.Key)

		return strings.Contains(log, "it runs")
	})
}

// longCommand is the command of a job that runs until it is stopped.
const longCommand = "echo it runs; sleep 600"

func TestBuildkiteAgent(t *testing.T) {
	t.Parallel()

	program := findAgent(t, "BUILDKITE_AGENT", "buildkite-agent")
	done := func(says, result, forge string) want {
		return want{api.PhaseFinished, api.ReasonJobDone, says, result, forge}
	}

	for name, tc := range map[string]struct {
		command string
		prepare func(*buildkiteFixture)
		drive   func(*buildkiteFixture)
		want    want
		logs    string // text in the job's log at Buildkite
	}{
		"the job passes": {
			command: `cat hello && echo "as $BUILDKITE_AGENT_NAME with token ${BUILDKITE_AGENT_TOKEN:-none}"`,
			want:    done("success (exit code 0)", "passed", "success"), logs: "as vm-1 with token none",
		},
		"the job fails": {command: "exit 3", want: done("failure (exit code 3)", "failed", "failure")},
		"the job fails with the exit code of a lost job": {command: "exit 27", want: done("failure (exit code 27)", "failed", "failure")},
		"the job is killed": {command: "kill -9 $$", want: done("failure (exit code", "failed", "failure")},
		"the job is cancelled on Buildkite": {
			command: longCommand, want: done(": canceled", "canceled", "cancelled"),
			drive: func(w *buildkiteFixture) {
				w.waitUntilRunning()

				if err := w.Cancel(w.job.ID); err != nil {
					w.t.Fatal(err)
				}
			},
		},
		"the job takes too long": {
			command: longCommand, prepare: func(w *buildkiteFixture) { w.config.JobTimeout = api.Duration(3 * time.Second) },
			want: want{api.PhaseFailed, api.ReasonJobTimeout, "took more than 3s", "", "failure"},
		},
		"the machine is terminated": {
			command: longCommand, drive: func(w *buildkiteFixture) { w.waitUntilRunning(); w.m.terminate() },
			want: want{api.PhaseFinished, api.ReasonTerminated, "", "", "failure"},
		},
		"another agent has the job": {
			command: longCommand, want: want{api.PhaseFinished, api.ReasonJobGone, "cannot be acquired any more", "", ""},
			prepare: func(w *buildkiteFixture) {
				w.StartAgent(w.t, w.job.Key, w.config.RunnerToken, nil)
				w.WaitUntil("another agent runs the job", func(st control.State) bool { return st.Jobs[0].Status == "in_progress" })
			},
		},
		"the job does not exist": {
			command: longCommand, prepare: func(w *buildkiteFixture) { w.config.JobID = missingJob },
			want: want{api.PhaseFinished, api.ReasonJobGone, "cannot be acquired any more", "", ""},
		},
		"the job is locked": {
			command: longCommand, want: want{api.PhaseFailed, api.ReasonRunnerFailed, "is locked", "", ""},
			prepare: func(w *buildkiteFixture) {
				blocked := w.Queue(control.JobSpec{Labels: []string{"queue=default"}, Environment: "production"})[0]
				// There is no acquisition token for a blocked job, so the cluster's token is used.
				w.config.JobID, w.config.RunnerToken = blocked.Key, buildkitetest.Token
			},
		},
		"the token is rejected": {
			command: longCommand, prepare: func(w *buildkiteFixture) { w.config.RunnerToken = "wrong-token" },
			want: want{api.PhaseFailed, api.ReasonRegistrationError, "does not accept the agent's token", "", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newBuildkiteFixture(t, tc.command)
			if tc.prepare != nil {
				tc.prepare(w)
			}

			w.m = startMachine(t, program, "/usr/bin/buildkite-agent", w.config)
			if tc.drive != nil {
				tc.drive(w)
			}

			report, log := w.m.waitForEnd()
			job := w.State().Jobs[0]
			_, jobLog := w.JobLog(w.job.Key)
			tc.want.check(t, report, log+"\nThe job's log:\n"+jobLog, job.Conclusion)

			if !strings.Contains(jobLog, tc.logs) {
				t.Errorf("the job's log does not contain %q:\n%s", tc.logs, jobLog)
			}
		})
	}
}
