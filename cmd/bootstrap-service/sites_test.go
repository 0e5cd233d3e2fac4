// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	buildkitesim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	genericsim "github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	giteasim "github.com/hyperfleet/hyperfleet/sim/gitea"
	"github.com/hyperfleet/hyperfleet/sim/gitea/giteatest"
	githubsim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	gitlabsim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
	"github.com/hyperfleet/hyperfleet/workload/generic"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
	"github.com/hyperfleet/hyperfleet/workload/github"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// githubByToken is the name of GitHub with registration tokens instead of just-in-time configs.
const githubByToken = "github-by-token"

// testPlatform is one simulated platform for machines of any pool.
type testPlatform struct {
	platform workload.Platform
	// newConfig returns the settings of a template and of a pool whose runners have the labels.
	newConfig func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig)
	secrets   map[string]string
	queueJobs func(control.JobSpec) []control.Job
	getState  func() control.State
	// getOutput returns the output of a job. It is nil if the platform does not return it.
	getOutput func(id int64) string
	// jobsURL is the URL to which the command of the generic sender reports.
	jobsURL string
	// canIdle is true if a runner can wait without a job.
	canIdle bool
	// messages are parts of the last report's message, after a successful and after a failed job. logText is a
	// part of the report's log.
	messages [2]string
	logText  string
	// provider is the provider of the scope, which all pools of the scope share.
	provider *sharedProvider
}

type sharedProvider struct {
	once     sync.Once
	provider workload.Provider
	err      error
}

func newTestPlatforms(t *testing.T) map[string]testPlatform {
	t.Helper()

	githubServer, gitlabServer := githubtest.New(t, githubsim.Options{}), gitlabtest.New(t, gitlabsim.Options{})
	hooks := generictest.NewReceiver(t, nil)
	sender := generictest.New(t, genericsim.Options{Webhook: control.WebhookTarget{URL: hooks.URL}})

	newGitHubPlatform := func(registration string) testPlatform {
		return testPlatform{
			platform: github.Platform{}, secrets: map[string]string{"token": githubtest.PAT}, queueJobs: githubServer.Queue, getState: githubServer.State, canIdle: true,
			messages: [2]string{"Succeeded", "Failed"},
			newConfig: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{APIURL: githubServer.URL, Registration: registration}},
					v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Repository: githubtest.Repo, Labels: labels}}
			},
		}
	}

	out := map[string]testPlatform{
		v1alpha1.WorkloadGitHubActions: newGitHubPlatform(v1alpha1.RegistrationJIT), githubByToken: newGitHubPlatform(v1alpha1.RegistrationToken),
		v1alpha1.WorkloadGitLabCI: {
			platform: gitlab.Platform{}, secrets: map[string]string{"token": gitlabtest.Token}, queueJobs: gitlabServer.Queue, getState: gitlabServer.State, canIdle: true,
			getOutput: gitlabServer.Trace, messages: [2]string{": success", ": failure"}, logText: "Starting runner for " + gitlabServer.URL,
			newConfig: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{}},
					v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{URL: gitlabServer.URL, ProjectID: gitlabtest.Project, Tags: labels}}
			},
		},
		v1alpha1.WorkloadBuildkite: newBuildkitePlatform(buildkitetest.New(t, buildkitesim.Options{})),
		v1alpha1.WorkloadGeneric: {
			platform: generic.Platform{}, queueJobs: sender.Queue, getState: sender.State, jobsURL: sender.URL + "/jobs/", messages: listExitMessages(), logText: "started",
			newConfig: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{}, v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
					Source: generictest.Source, Labels: labels, Command: []string{forgesim, "generic-job"},
				}}
			},
		},
		v1alpha1.WorkloadForgejoActions: newGiteaPlatform(t, gitea.Forgejo()), v1alpha1.WorkloadGiteaActions: newGiteaPlatform(t, gitea.Gitea()),
	}

	for name, site := range out {
		site.provider = &sharedProvider{}
		out[name] = site
	}

	return out
}

// listExitMessages returns the texts for the exit codes of a command.
func listExitMessages() [2]string {
	return [2]string{": success (exit code 0)", ": failure (exit code 3)"}
}

func newBuildkitePlatform(s *buildkitetest.Server) testPlatform {
	return testPlatform{
		platform: buildkite.Platform{}, secrets: map[string]string{"token": buildkitetest.Token}, queueJobs: s.Queue, getState: s.State,
		messages: listExitMessages(), logText: "Successfully registered agent", provider: &sharedProvider{},
		newConfig: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
			return v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Endpoint: s.Endpoint}},
				v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: buildkitetest.Organization, Tags: labels}}
		},
	}
}

// newGiteaPlatform returns a simulated Forgejo or Gitea.
func newGiteaPlatform(t *testing.T, platform workload.Platform) testPlatform {
	t.Helper()

	s := giteatest.New(t, giteasim.Options{Forgejo: platform.Traits().Slug == "forgejo"})
	finished := "of " + giteatest.Repository + ": finished"

	return testPlatform{
		platform: platform, secrets: map[string]string{"token": giteatest.Token}, queueJobs: s.Queue, getState: s.State,
		messages: [2]string{finished, finished}, logText: "declared successfully",
		newConfig: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
			settings := &v1alpha1.GiteaConfig{URL: s.URL, Repository: giteatest.Repository, Labels: labels}

			return v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{}, Gitea: &v1alpha1.GiteaBootstrap{}},
				v1alpha1.WorkloadConfig{Forgejo: settings, Gitea: settings}
		},
	}
}

// issueCredential registers a machine's runner at the platform, as the operator does for a pool with the labels. If job is
// nil, the runner waits for a job.
func (f testPlatform) issueCredential(
	t *testing.T, template *v1alpha1.HypervisorMachineTemplate, name string, labels []string, job *control.Job,
) (workload.RunnerSpec, workload.Credential, error) {
	t.Helper()

	bootstrap, load := f.newConfig(labels)
	template.Spec.Bootstrap = v1alpha1.Bootstrap{Method: v1alpha1.BootstrapRunnerToken, Config: &bootstrap}

	spec, err := f.platform.ResolveRunner(template, v1alpha1.Workload{Config: &load})
	if err != nil {
		return spec, workload.Credential{}, err
	}

	f.provider.once.Do(func() {
		f.provider.provider, f.provider.err = f.platform.Open(workload.Config{Runner: spec, Template: template, Secrets: f.secrets})
		if f.provider.err == nil {
			f.provider.err = f.provider.provider.Validate(t.Context())
		}
	})

	if f.provider.err != nil {
		return spec, workload.Credential{}, f.provider.err
	}

	request := workload.RunnerRequest{Name: name, Labels: spec.Labels, Registration: spec.Registration}
	if job != nil && spec.NeedsJob {
		request.Job = &workload.Job{
			ID: job.Key, Platform: spec.Platform, Name: job.Name, Repository: job.Repo, URL: f.jobsURL + job.Key,
			Labels: job.Labels,
		}
	}

	credential, err := issueWithRetry(t, f.provider.provider, request)

	return spec, credential, err
}

// result is the result of one machine, from the pool's settings to the machine's last report.
type result struct {
	spec      workload.RunnerSpec
	report    api.Report
	leftovers []string
	output    string
}

// newConfigOf returns the configuration of a machine of a pool with the labels. If job is nil, the machine waits for a job.
func (f testPlatform) newConfigOf(t *testing.T, name string, labels []string, job *control.Job) (workload.RunnerSpec, *api.Config, error) {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Name = "linux"

	spec, credential, err := f.issueCredential(t, template, name, labels, job)
	if err != nil {
		return spec, nil, err
	}

	config := &api.Config{
		Method: api.MethodRunnerToken, Platform: spec.Platform, RunnerName: name, Labels: spec.Labels,
		Runner: spec.Program, Command: spec.Command,
	}
	if job == nil {
		config.IdleTimeout = api.Duration(300 * time.Millisecond)
	}

	credential.Apply(config)

	return spec, config, nil
}

// runMachine runs one machine of a pool with the labels.
func (f testPlatform) runMachine(t *testing.T, name string, labels []string, job *control.Job) (result, error) {
	t.Helper()

	spec, config, err := f.newConfigOf(t, name, labels, job)
	if err != nil {
		return result{}, err
	}

	return runService(t, spec, config)
}

// issueWithRetry issues a credential. Like the operator, it waits while the rate limit of the platform is exceeded.
func issueWithRetry(t *testing.T, provider workload.Provider, request workload.RunnerRequest) (workload.Credential, error) {
	t.Helper()

	for {
		credential, err := provider.IssueCredential(t.Context(), request)

		limited, ok := errors.AsType[*workload.Error](err)
		if !ok || limited.Kind != workload.RateLimited {
			return credential, err
		}

		select {
		case <-t.Context().Done():
			return credential, err
		case <-time.After(max(limited.RetryAfter, 100*time.Millisecond)):
		}
	}
}

// runService runs the bootstrap service in the same way as a machine.
func runService(t *testing.T, spec workload.RunnerSpec, config *api.Config) (result, error) {
	t.Helper()

	dir, err := createImage(t, config)
	if err != nil {
		return result{}, err
	}

	var out bytes.Buffer

	cmd := exec.Command(program, "--root", dir)
	cmd.Stdout, cmd.Stderr = &out, &out

	if err := cmd.Run(); err != nil {
		return result{}, fmt.Errorf("%w\n%s", err, &out)
	}

	report, err := readLastReport(dir)
	if err != nil {
		return result{}, err
	}

	done := result{spec: spec, report: report, output: out.String()}

	for _, secret := range []string{config.JITConfig, config.RunnerToken} {
		if secret != "" && strings.Contains(done.output+done.report.Log, secret) {
			done.leftovers = append(done.leftovers, "the credential in its output")
		}
	}

	for _, file := range []string{api.ConfigPath, spec.Program.WorkDir, "/opt/actions-runner/.credentials"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			done.leftovers = append(done.leftovers, file)
		}
	}

	return done, nil
}

// createImage creates the root folder of a machine with the simulated runners of all platforms.
func createImage(t *testing.T, config *api.Config) (string, error) {
	t.Helper()

	data, err := json.Marshal(config)
	if err != nil {
		return "", err
	}

	dir := t.TempDir()
	path := filepath.Join(dir, api.ConfigPath)

	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600)); err != nil {
		return "", err
	}

	if output, err := exec.Command(forgesim, "image", "--link", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}

	return dir, nil
}

// runJob runs a machine whose job succeeds, fails, or never arrives ("idle"). It returns a description of the problem,
// or an empty string.
func (f testPlatform) runJob(t *testing.T, label, outcome string) string {
	t.Helper()

	var job *control.Job

	if outcome != "idle" {
		spec := control.JobSpec{Labels: f.newJobLabels(label), Command: `echo "token: ${CI_SERVER_TOKEN:-$BUILDKITE_AGENT_TOKEN}."`}
		if outcome == "failure" {
			spec.Command = "exit 3"
		}

		job = &f.queueJobs(spec)[0]
	}

	done, err := f.runMachine(t, label, f.newPoolLabels(label), job)
	if err != nil {
		return err.Error()
	}

	want := api.ReasonJobDone
	if outcome == "idle" {
		want = api.ReasonIdleTimeout
	}

	if done.report.Phase != api.PhaseFinished || done.report.Reason != want || len(done.leftovers) > 0 {
		return fmt.Sprintf("%s: ended with %+v, leftovers %v\n%s", outcome, done.report, done.leftovers, done.output)
	}

	state := f.getState()
	if slices.ContainsFunc(state.Runners, func(r control.Runner) bool { return r.Name == label && r.Busy }) {
		return "its runner is still busy"
	}

	if job == nil {
		return ""
	}

	message := f.messages[0]
	if outcome == "failure" {
		message = f.messages[1]
	}

	if !strings.Contains(done.report.Message, message) || !strings.Contains(done.report.Log, f.logText) || !strings.Contains(done.output, "phase=Running") {
		return fmt.Sprintf("the last report is %+v, want %q, and %q in its log\n%s", done.report, message, f.logText, done.output)
	}

	if f.getOutput != nil && strings.Contains(f.getOutput(job.ID), "glrt-") {
		return "the job can print the runner's token: " + f.getOutput(job.ID)
	}

	for _, seen := range state.Jobs {
		if seen.ID == job.ID && (seen.Conclusion != outcome || !f.hasRun(seen, label)) {
			return fmt.Sprintf("the platform has %+v, want %s\n%s", seen, outcome, done.output)
		}
	}

	return ""
}

// hasRun returns true if the runner ran the job. It always returns true for the generic sender, which has no runners.
func (f testPlatform) hasRun(job control.Job, runner string) bool {
	return job.RunnerName == runner || f.platform.Traits().Slug == "generic"
}

// newJobLabels returns a label in the form in which a job requires it.
func (f testPlatform) newJobLabels(label string) []string {
	if f.platform.Traits().Slug == "buildkite" {
		return []string{"queue=default", "name=" + label}
	}

	return []string{label}
}

// newPoolLabels returns a label in the form in which a pool has it.
func (f testPlatform) newPoolLabels(label string) []string {
	if f.platform.Traits().Slug == "buildkite" {
		return []string{"name=" + label}
	}

	return []string{label}
}

// TestJobOfEachPlatform tests all steps on each platform: a job is queued, the program runs the platform's runner, and
// the platform records the result of the job.
func TestJobOfEachPlatform(t *testing.T) {
	t.Parallel()

	for name, site := range newTestPlatforms(t) {
		for _, outcome := range []string{"success", "failure", "idle"} {
			if outcome == "idle" && !site.canIdle {
				continue
			}

			t.Run(name+" "+outcome, func(t *testing.T) {
				t.Parallel()

				if problem := site.runJob(t, name+"-"+outcome, outcome); problem != "" {
					t.Error(problem)
				}
			})
		}
	}
}

// TestJobOfAnotherAgent checks that a machine stops if another agent has taken its job.
func TestJobOfAnotherAgent(t *testing.T) {
	t.Parallel()

	s := buildkitetest.New(t, buildkitesim.Options{})
	site := newBuildkitePlatform(s)
	job := site.queueJobs(control.JobSpec{Labels: site.newJobLabels("theirs"), Command: "sleep 60"})[0]

	spec, config, err := site.newConfigOf(t, "theirs", site.newPoolLabels("theirs"), &job)
	if err != nil {
		t.Fatal(err)
	}

	other := s.StartAgent(t, job.Key, config.RunnerToken, nil)
	s.WaitUntil("another agent has the job", func(st control.State) bool { return st.Jobs[0].Status == "in_progress" })

	done, err := runService(t, spec, config)
	other.Abort()
	other.Wait()

	if got := done.report; err != nil || got.Phase != api.PhaseFinished || got.Reason != api.ReasonJobGone || got.Result != "" {
		t.Errorf("%v: ended with %+v\n%s", err, got, done.output)
	}
}

// TestStopOnSIGTERM checks that a machine stops its runner on SIGTERM, and that the runner goes offline at the platform.
func TestStopOnSIGTERM(t *testing.T) {
	t.Parallel()

	sites := newTestPlatforms(t)

	for _, name := range []string{v1alpha1.WorkloadGitHubActions, githubByToken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, config, err := sites[name].newConfigOf(t, name, []string{name}, nil)
			if err != nil {
				t.Fatal(err)
			}

			config.IdleTimeout = 0

			dir, err := createImage(t, config)
			if err != nil {
				t.Fatal(err)
			}

			cmd := exec.Command(program, "--root", dir)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}

			waitForListening(t, dir)

			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}

			_ = cmd.Wait()

			report, err := readLastReport(dir)
			if err != nil || report.Reason != api.ReasonTerminated || !strings.Contains(report.Message, "was stopped") {
				t.Errorf("%v: ended with %+v", err, report)
			}

			online := func(r control.Runner) bool { return r.Name == name && r.Online }
			if runners := sites[name].getState().Runners; slices.ContainsFunc(runners, online) {
				t.Errorf("its runner is still online: %+v", runners)
			}
		})
	}
}
