// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	buildkitesim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	giteasim "github.com/hyperfleet/hyperfleet/sim/gitea"
	"github.com/hyperfleet/hyperfleet/sim/gitea/giteatest"
	gitlabsim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// machine gives the configuration of a machine with a credential of the provider.
func machine(t *testing.T, provider workload.Provider, runner workload.RunnerSpec, job *workload.Job) *api.Config {
	t.Helper()

	request := workload.RunnerRequest{Name: "vm-1", Labels: runner.Labels, Job: job}

	credential, err := provider.Issue(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}

	config := &api.Config{
		Method: api.MethodRunnerToken, Platform: runner.Platform, RunnerName: request.Name, Labels: request.Labels, Runner: runner.Program,
	}
	credential.Apply(config)

	return config
}

// open reads settings and makes their provider.
func open(
	t *testing.T, platform workload.Platform, bootstrap v1alpha1.BootstrapConfig, load v1alpha1.WorkloadConfig, secrets map[string]string,
) (workload.RunnerSpec, workload.Provider) {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Name, template.Spec.Bootstrap.Config = "linux", &bootstrap

	runner, err := platform.Runner(template, v1alpha1.Workload{Config: &load})
	if err != nil {
		t.Fatal(err)
	}

	provider, err := platform.Open(workload.Config{Runner: runner, Template: template, Secrets: secrets})
	if err != nil {
		t.Fatal(err)
	}

	return runner, provider
}

// runMachine lays out an image with all stand-ins and runs the program in it.
func runMachine(t *testing.T, config *api.Config) (dir, out string) {
	t.Helper()

	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}

	dir = root(t, "", string(data))
	if said, err := exec.Command(forgesim, "image", "--link", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}

	var text bytes.Buffer

	cmd := exec.Command(program, "--root", dir)
	cmd.Stdout, cmd.Stderr = &text, &text

	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, &text)
	}

	if strings.Contains(text.String(), config.RunnerToken) && config.RunnerToken != "" {
		t.Error("the credential is in the log")
	}

	return dir, text.String()
}

// jobCases are jobs, and what becomes of each with every platform.
func jobCases() map[string]struct{ command, conclusion string } {
	return map[string]struct{ command, conclusion string }{
		"succeeds": {`echo "token: ${CI_SERVER_TOKEN:-$BUILDKITE_AGENT_TOKEN}."`, "success"},
		"fails":    {"exit 3", "failure"},
	}
}

// TestJobOfASimulatedGitLab: the program runs the stand-in gitlab-runner, and GitLab sees
// the job done.
func TestJobOfASimulatedGitLab(t *testing.T) {
	t.Parallel()

	for name, tc := range jobCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := gitlabtest.New(t, gitlabsim.Options{})
			job := s.Queue(control.JobSpec{Labels: []string{"linux"}, Command: tc.command})[0]
			runner, provider := open(t, gitlab.Platform{},
				v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{}},
				v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{URL: s.URL, ProjectID: gitlabtest.Project, Tags: []string{"linux"}}},
				map[string]string{"token": gitlabtest.Token})

			dir, out := runMachine(t, machine(t, provider, runner, nil))

			says := map[string]string{"success": ": success", "failure": ": failure"}[tc.conclusion]
			checkEnd(t, dir, out, api.PhaseFinished, api.ReasonJobDone, says)
			checkLog(t, dir, "Starting runner for "+s.URL)

			if got := s.State().Jobs[0]; got.Conclusion != tc.conclusion || got.RunnerName != "vm-1" {
				t.Errorf("GitLab has job %+v\n%s", got, out)
			}

			if trace := s.Trace(job.ID); strings.Contains(trace, "glrt-") {
				t.Errorf("the job can print the runner's token:\n%s", trace)
			}
		})
	}
}

// TestJobOfASimulatedBuildkite: the program runs the stand-in buildkite-agent, and
// Buildkite sees the job done.
func TestJobOfASimulatedBuildkite(t *testing.T) {
	t.Parallel()

	for name, tc := range jobCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := buildkitetest.New(t, buildkitesim.Options{})
			runner, provider := openBuildkite(t, s)
			queued := s.Queue(control.JobSpec{Labels: []string{"queue=default"}, Command: tc.command})[0]
			config := machine(t, provider, runner, &workload.Job{ID: queued.Key, Platform: runner.Platform})

			dir, out := runMachine(t, config)

			says := map[string]string{"success": "success (exit code 0)", "failure": "failure (exit code 3)"}[tc.conclusion]
			checkEnd(t, dir, out, api.PhaseFinished, api.ReasonJobDone, "job "+queued.Key+": "+says)
			checkLog(t, dir, "Successfully registered agent")

			if got := s.State().Jobs[0]; got.Conclusion != tc.conclusion || got.RunnerName != "vm-1" {
				t.Errorf("Buildkite has job %+v\n%s", got, out)
			}
		})
	}

	t.Run("is another's", func(t *testing.T) {
		t.Parallel()

		s := buildkitetest.New(t, buildkitesim.Options{})
		runner, provider := openBuildkite(t, s)
		queued := s.Queue(control.JobSpec{Labels: []string{"queue=default"}, Command: "sleep 60"})[0]
		config := machine(t, provider, runner, &workload.Job{ID: queued.Key, Platform: runner.Platform})
		other := s.StartAgent(t, queued.Key, config.RunnerToken, nil)
		s.Eventually("another agent has the job", func(st control.State) bool { return st.Jobs[0].Status == "in_progress" })

		dir, out := runMachine(t, config)
		other.Abort()
		other.Wait()

		if got := readReport(t, dir); got.Phase != api.PhaseFinished || got.Reason != api.ReasonJobGone || got.Result != "" {
			t.Errorf("ended with %+v\n%s", got, out)
		}
	})
}

// TestJobOfASimulatedForgejoOrGitea: the program runs the stand-ins of forgejo-runner and
// act_runner, and the server sees the job done.
func TestJobOfASimulatedForgejoOrGitea(t *testing.T) {
	t.Parallel()

	for _, platform := range []workload.Platform{gitea.Forgejo(), gitea.Gitea()} {
		for name, tc := range jobCases() {
			t.Run(platform.Traits().Slug+" "+name, func(t *testing.T) {
				t.Parallel()

				s := giteatest.New(t, giteasim.Options{Forgejo: platform.Traits().Slug == "forgejo"})
				queued := s.Queue(control.JobSpec{Labels: []string{"linux"}, Command: tc.command})[0]
				settings := &v1alpha1.GiteaConfig{URL: s.URL, Repository: giteatest.Repository, Labels: []string{"linux"}}
				runner, provider := open(t, platform,
					v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{}, Gitea: &v1alpha1.GiteaBootstrap{}},
					v1alpha1.WorkloadConfig{Forgejo: settings, Gitea: settings}, map[string]string{"token": giteatest.Token})

				config := machine(t, provider, runner, &workload.Job{ID: queued.Key, Platform: runner.Platform})
				dir, out := runMachine(t, config)

				checkEnd(t, dir, out, api.PhaseFinished, api.ReasonJobDone, "of "+giteatest.Repository+": finished")
				checkLog(t, dir, "declared successfully")

				if got := s.State().Jobs[0]; got.Conclusion != tc.conclusion || got.RunnerName != "vm-1" {
					t.Errorf("the server has job %+v\n%s", got, out)
				}
			})
		}
	}
}

func openBuildkite(t *testing.T, s *buildkitetest.Server) (workload.RunnerSpec, workload.Provider) {
	t.Helper()

	runner, provider := open(t, buildkite.Platform{},
		v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Endpoint: s.Endpoint}},
		v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: buildkitetest.Organization}},
		map[string]string{"token": buildkitetest.Token})

	if err := provider.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	return runner, provider
}
