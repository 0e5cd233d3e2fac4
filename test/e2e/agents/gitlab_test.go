// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package agents_test

import (
	"strings"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// gitLabFixture has a queued job, and the configuration of a machine for its project.
type gitLabFixture struct {
	*gitlabtest.Server

	t      *testing.T
	job    control.Job
	config *api.Config
	m      *machine
}

// newGitLabFixture queues a job with the command, or none if it is "".
func newGitLabFixture(t *testing.T, command string) *gitLabFixture {
	t.Helper()

	w := &gitLabFixture{t: t, Server: gitlabtest.New(t, sim.Options{PollTimeout: time.Second})}
	w.SetURL(w.URL)

	tags := []string{"linux"}
	runner, provider := openProvider(t, gitlab.Platform{},
		v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{}},
		v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{URL: w.URL, ProjectID: gitlabtest.Project, Tags: tags}}, gitlabtest.Token)
	w.config = newConfig(t, provider, runner, nil)

	if command != "" {
		w.job = w.Queue(control.JobSpec{Labels: tags, Command: command})[0]
	}

	return w
}

// waitUntilRunning waits until the log shows that the job runs.
func (w *gitLabFixture) waitUntilRunning() {
	w.t.Helper()
	w.WaitUntil("the job runs", func(control.State) bool { return strings.Contains(w.Trace(w.job.ID), "it runs") })
}

func TestGitLabRunner(t *testing.T) {
	t.Parallel()

	program := findAgent(t, "GITLAB_RUNNER", "gitlab-runner")
	done := func(says, result, forge string) want {
		return want{api.PhaseFinished, api.ReasonJobDone, says, result, forge}
	}

	for name, tc := range map[string]struct {
		command string // "" if there is no job
		prepare func(*gitLabFixture)
		drive   func(*gitLabFixture)
		want    want
	}{
		"the job passes": {command: `echo "token: ${CI_SERVER_TOKEN:-none}"`, want: done(": success", "success", "success")},
		"the job fails":  {command: "exit 3", want: done(": failure", "failed", "failure")},
		"the job is cancelled on GitLab": {
			command: longCommand, want: done("canceled", "canceled", "cancelled"),
			drive: func(w *gitLabFixture) {
				w.waitUntilRunning()

				if err := w.Cancel(w.job.ID); err != nil {
					w.t.Fatal(err)
				}
			},
		},
		"the job takes too long": {
			command: longCommand, prepare: func(w *gitLabFixture) { w.config.JobTimeout = api.Duration(3 * time.Second) },
			want: want{api.PhaseFailed, api.ReasonJobTimeout, "took more than 3s", "", "failure"},
		},
		"the machine is terminated": {
			command: longCommand, drive: func(w *gitLabFixture) { w.waitUntilRunning(); w.m.terminate() },
			want: want{api.PhaseFinished, api.ReasonTerminated, "", "", "failure"},
		},
		"no job is queued": {
			prepare: func(w *gitLabFixture) { w.config.IdleTimeout = api.Duration(3 * time.Second) },
			want:    want{api.PhaseFinished, api.ReasonIdleTimeout, "no job started within 3s", "", ""},
		},
		"the token is rejected": {
			prepare: func(w *gitLabFixture) { w.config.RunnerToken = "glrt-wrong-token" },
			want:    want{api.PhaseFailed, api.ReasonRegistrationError, "does not accept the runner's token", "", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newGitLabFixture(t, tc.command)
			if tc.prepare != nil {
				tc.prepare(w)
			}

			w.m = startMachine(t, program, "/usr/bin/gitlab-runner", w.config)
			if tc.drive != nil {
				tc.drive(w)
			}

			report, log := w.m.waitForEnd()

			conclusion := ""
			if jobs := w.State().Jobs; len(jobs) > 0 {
				conclusion = jobs[0].Conclusion
				log += "\nThe job's log:\n" + w.Trace(w.job.ID)
			}

			tc.want.check(t, report, log, conclusion)

			if trace := w.Trace(w.job.ID); strings.Contains(trace, "glrt-") {
				t.Errorf("the job can print the runner's token:\n%s", trace)
			}
		})
	}
}
