// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

const mark = "hf-op-1a2b3c4d5e"

// A job from the queue to its end: a signed webhook reports the job, its tags are read, it is
// matched, a runner is created and runs it, and finally nothing is left.
func TestJobFromWebhookToCleanup(t *testing.T) {
	t.Parallel()

	for name, secret := range map[string]string{
		"secret token":  "a plain secret",
		"signing token": gitlab.SigningPrefix + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			hooks := gitlabtest.NewReceiver(t)
			server := gitlabtest.New(t, sim.Options{Webhook: control.WebhookTarget{URL: hooks.URL, Secret: secret}})
			template, load := newSettings(server.URL)
			platform := gitlab.Platform{}

			runner, err := platform.ResolveRunner(template, load)
			if err != nil {
				t.Fatal(err)
			}

			p, err := platform.Open(workload.Config{
				Runner: runner, Template: template, Secrets: map[string]string{"token": gitlabtest.Token},
			})
			if err != nil {
				t.Fatal(err)
			}

			server.Queue(control.JobSpec{Labels: []string{"linux", "big"}, Command: "echo well done"})
			queued := readLastJob(t, server, hooks, secret)

			if queued.State != v1alpha1.JobQueued || !queued.LabelsUnknown {
				t.Fatalf("the webhook has %+v", queued)
			}

			job, err := p.GetJob(t.Context(), queued.Repository, queued.ID)
			if err != nil || job.LabelsUnknown || job.URL != queued.URL {
				t.Fatalf("Job = %+v, %v; the webhook has %+v", job, err, queued)
			}

			if fit := platform.MatchJob(runner, job); !fit.Matched {
				t.Fatalf("Fit = %+v of %v and %v", fit, runner.Labels, job.Labels)
			}

			issued, err := p.IssueCredential(t.Context(), workload.RunnerRequest{
				Name: "build-1-0a1b2c3d", Labels: append(runner.Labels, mark), Description: runner.Description,
			})
			if err != nil || !strings.HasPrefix(issued.RunnerToken, "glrt-") || issued.RegistrationURL != server.URL {
				t.Fatalf("Issue = %+v, %v", issued, err)
			}

			machine := server.StartRunner(t, issued.RunnerToken, "--wait-timeout", "20")
			if code := machine.Wait(); code != 0 || !strings.Contains(machine.Output(), "Job succeeded") {
				t.Fatalf("exit code %d, output:\n%s", code, machine.Output())
			}

			if queued := readLastJob(t, server, hooks, secret); queued.State != v1alpha1.JobCompleted || queued.Conclusion != "success" ||
				queued.RunnerName != "build-1-0a1b2c3d" || queued.StartedAt == nil || queued.CompletedAt == nil {
				t.Errorf("the last webhook has %+v", queued)
			}

			if found, err := p.FindRunner(t.Context(), "build-1-0a1b2c3d", 0); err != nil || !found.Online || found.Busy || found.ID != issued.RunnerID {
				t.Errorf("Find = %+v, %v", found, err)
			}

			if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
				t.Errorf("Deregister: %v", err)
			}

			if state := server.State(); len(state.Runners) != 0 || !strings.Contains(server.Trace(state.Jobs[0].ID), "well done") {
				t.Errorf("left: %+v, log:\n%s", state.Runners, server.Trace(state.Jobs[0].ID))
			}
		})
	}
}

// readLastJob waits until all webhooks have arrived, and parses the last one about a job.
func readLastJob(t *testing.T, server *gitlabtest.Server, hooks *gitlabtest.Receiver, secret string) workload.Job {
	t.Helper()
	server.WaitUntil("all webhooks came", func(s control.State) bool { return s.Webhooks.Pending == 0 })

	var (
		out   workload.Job
		found bool
	)

	for _, hook := range hooks.Webhooks() {
		if err := (gitlab.Webhooks{}).Verify(hook.Header, hook.Body, []byte(secret)); err != nil {
			t.Fatalf("Verify: %v", err)
		}

		job, speaks, err := gitlab.Webhooks{}.ParseJob(hook.Header, hook.Body)
		if err != nil {
			t.Fatalf("Parse: %v", err)
		}

		if speaks {
			out, found = job, true
		}
	}

	if !found {
		t.Fatal("no webhook was about a job")
	}

	return out
}

// newSettings returns the settings of a template and a pool for the simulator's group.
func newSettings(url string) (*v1alpha1.HypervisorMachineTemplate, v1alpha1.Workload) {
	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Name = "linux"
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{
		GitLab: &v1alpha1.GitLabBootstrap{}, HTTPClient: &v1alpha1.HTTPClient{TimeoutSeconds: int32((5 * time.Second).Seconds())},
	}

	return template, v1alpha1.Workload{Type: v1alpha1.WorkloadGitLabCI, Config: &v1alpha1.WorkloadConfig{
		GitLab: &v1alpha1.GitLabCIConfig{
			URL: url + "/", GroupID: gitlabtest.Group, Tags: []string{"linux", "big", "linux "}, Description: "of the end-to-end test",
		},
	}}
}
