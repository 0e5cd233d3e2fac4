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

// byToken is the name of GitHub with registration tokens instead of just-in-time configs.
const byToken = "github-by-token"

// platformSite is one simulated platform for machines of any pool.
type platformSite struct {
	platform workload.Platform
	// pool returns the settings of a template and of a pool whose runners have the labels.
	pool    func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig)
	secrets map[string]string
	queue   func(control.JobSpec) []control.Job
	state   func() control.State
	// trace returns the output of a job. It is nil if the platform does not return it.
	trace func(id int64) string
	// jobs is the URL to which the command of the generic sender reports.
	jobs string
	// idles is true if a runner can wait without a job.
	idles bool
	// says has texts in the message of the last report, after a successful and after a failed job. logs is a text in
	// the log of the report.
	says [2]string
	logs string
	// opened has the provider of the scope, which all pools of the scope share.
	opened *sharedProvider
}

type sharedProvider struct {
	once     sync.Once
	provider workload.Provider
	err      error
}

func platformSites(t *testing.T) map[string]platformSite {
	t.Helper()

	hub, lab := githubtest.New(t, githubsim.Options{}), gitlabtest.New(t, gitlabsim.Options{})
	hooks := generictest.NewReceiver(t, nil)
	sender := generictest.New(t, genericsim.Options{Webhook: control.WebhookTarget{URL: hooks.URL}})

	onGitHub := func(registration string) platformSite {
		return platformSite{
			platform: github.Platform{}, secrets: map[string]string{"token": githubtest.PAT}, queue: hub.Queue, state: hub.State, idles: true,
			says: [2]string{"Succeeded", "Failed"},
			pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{APIURL: hub.URL, Registration: registration}},
					v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Repository: githubtest.Repo, Labels: labels}}
			},
		}
	}

	out := map[string]platformSite{
		v1alpha1.WorkloadGitHubActions: onGitHub(v1alpha1.RegistrationJIT), byToken: onGitHub(v1alpha1.RegistrationToken),
		v1alpha1.WorkloadGitLabCI: {
			platform: gitlab.Platform{}, secrets: map[string]string{"token": gitlabtest.Token}, queue: lab.Queue, state: lab.State, idles: true,
			trace: lab.Trace, says: [2]string{": success", ": failure"}, logs: "Starting runner for " + lab.URL,
			pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{}},
					v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{URL: lab.URL, ProjectID: gitlabtest.Project, Tags: labels}}
			},
		},
		v1alpha1.WorkloadBuildkite: buildkiteSite(buildkitetest.New(t, buildkitesim.Options{})),
		v1alpha1.WorkloadGeneric: {
			platform: generic.Platform{}, queue: sender.Queue, state: sender.State, jobs: sender.URL + "/jobs/", says: exits(), logs: "started",
			pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{}, v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
					Source: generictest.Source, Labels: labels, Command: []string{forgesim, "generic-job"},
				}}
			},
		},
		v1alpha1.WorkloadForgejoActions: giteaSite(t, gitea.Forgejo()), v1alpha1.WorkloadGiteaActions: giteaSite(t, gitea.Gitea()),
	}

	for name, site := range out {
		site.opened = &sharedProvider{}
		out[name] = site
	}

	return out
}

// exits returns the texts for the exit codes of a command.
func exits() [2]string { return [2]string{": success (exit code 0)", ": failure (exit code 3)"} }

func buildkiteSite(s *buildkitetest.Server) platformSite {
	return platformSite{
		platform: buildkite.Platform{}, secrets: map[string]string{"token": buildkitetest.Token}, queue: s.Queue, state: s.State,
		says: exits(), logs: "Successfully registered agent", opened: &sharedProvider{},
		pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
			return v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Endpoint: s.Endpoint}},
				v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: buildkitetest.Organization, Tags: labels}}
		},
	}
}

// giteaSite returns a simulated Forgejo or Gitea.
func giteaSite(t *testing.T, platform workload.Platform) platformSite {
	t.Helper()

	s := giteatest.New(t, giteasim.Options{Forgejo: platform.Traits().Slug == "forgejo"})
	finished := "of " + giteatest.Repository + ": finished"

	return platformSite{
		platform: platform, secrets: map[string]string{"token": giteatest.Token}, queue: s.Queue, state: s.State,
		says: [2]string{finished, finished}, logs: "declared successfully",
		pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
			settings := &v1alpha1.GiteaConfig{URL: s.URL, Repository: giteatest.Repository, Labels: labels}

			return v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{}, Gitea: &v1alpha1.GiteaBootstrap{}},
				v1alpha1.WorkloadConfig{Forgejo: settings, Gitea: settings}
		},
	}
}

// credential registers a machine's runner at the platform, as the operator does for a pool with the labels. If job is
// nil, the runner waits for a job.
func (f platformSite) credential(
	t *testing.T, template *v1alpha1.HypervisorMachineTemplate, name string, labels []string, job *control.Job,
) (workload.RunnerSpec, workload.Credential, error) {
	t.Helper()

	bootstrap, load := f.pool(labels)
	template.Spec.Bootstrap = v1alpha1.Bootstrap{Method: v1alpha1.BootstrapRunnerToken, Config: &bootstrap}

	spec, err := f.platform.ResolveRunner(template, v1alpha1.Workload{Config: &load})
	if err != nil {
		return spec, workload.Credential{}, err
	}

	f.opened.once.Do(func() {
		f.opened.provider, f.opened.err = f.platform.Open(workload.Config{Runner: spec, Template: template, Secrets: f.secrets})
		if f.opened.err == nil {
			f.opened.err = f.opened.provider.Validate(t.Context())
		}
	})

	if f.opened.err != nil {
		return spec, workload.Credential{}, f.opened.err
	}

	request := workload.RunnerRequest{Name: name, Labels: spec.Labels, Registration: spec.Registration}
	if job != nil && spec.NeedsJob {
		request.Job = &workload.Job{
			ID: job.Key, Platform: spec.Platform, Name: job.Name, Repository: job.Repo, URL: f.jobs + job.Key,
			Labels: job.Labels,
		}
	}

	credential, err := issued(t, f.opened.provider, request)

	return spec, credential, err
}

// life is the result of one machine, from the pool's settings to the machine's last report.
type life struct {
	spec   workload.RunnerSpec
	report api.Report
	left   []string
	out    string
}

// machine returns the configuration of a machine of a pool with the labels. If job is nil, the machine waits for a job.
func (f platformSite) machine(t *testing.T, name string, labels []string, job *control.Job) (workload.RunnerSpec, *api.Config, error) {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Name = "linux"

	spec, credential, err := f.credential(t, template, name, labels, job)
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

// live runs one machine of a pool with the labels.
func (f platformSite) live(t *testing.T, name string, labels []string, job *control.Job) (life, error) {
	t.Helper()

	spec, config, err := f.machine(t, name, labels, job)
	if err != nil {
		return life{}, err
	}

	return boot(t, spec, config)
}

// issued issues a credential. Like the operator, it waits while the rate limit of the platform is exceeded.
func issued(t *testing.T, provider workload.Provider, request workload.RunnerRequest) (workload.Credential, error) {
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

// boot runs the bootstrap service in the same way as a machine.
func boot(t *testing.T, spec workload.RunnerSpec, config *api.Config) (life, error) {
	t.Helper()

	dir, err := laidOut(t, config)
	if err != nil {
		return life{}, err
	}

	var out bytes.Buffer

	cmd := exec.Command(program, "--root", dir)
	cmd.Stdout, cmd.Stderr = &out, &out

	if err := cmd.Run(); err != nil {
		return life{}, fmt.Errorf("%w\n%s", err, &out)
	}

	report, err := lastReport(dir)
	if err != nil {
		return life{}, err
	}

	done := life{spec: spec, report: report, out: out.String()}

	for _, secret := range []string{config.JITConfig, config.RunnerToken} {
		if secret != "" && strings.Contains(done.out+done.report.Log, secret) {
			done.left = append(done.left, "the credential in its output")
		}
	}

	for _, file := range []string{api.ConfigPath, spec.Program.WorkDir, "/opt/actions-runner/.credentials"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			done.left = append(done.left, file)
		}
	}

	return done, nil
}

// laidOut creates the root folder of a machine with the simulated runners of all platforms.
func laidOut(t *testing.T, config *api.Config) (string, error) {
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

	if said, err := exec.Command(forgesim, "image", "--link", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, said)
	}

	return dir, nil
}

// oneJob runs a machine whose job succeeds, fails, or never arrives ("idle"). It returns a description of the problem,
// or an empty string.
func (f platformSite) oneJob(t *testing.T, label, outcome string) string {
	t.Helper()

	var job *control.Job

	if outcome != "idle" {
		spec := control.JobSpec{Labels: f.asks(label), Command: `echo "token: ${CI_SERVER_TOKEN:-$BUILDKITE_AGENT_TOKEN}."`}
		if outcome == "failure" {
			spec.Command = "exit 3"
		}

		job = &f.queue(spec)[0]
	}

	done, err := f.live(t, label, f.has(label), job)
	if err != nil {
		return err.Error()
	}

	want := api.ReasonJobDone
	if outcome == "idle" {
		want = api.ReasonIdleTimeout
	}

	if done.report.Phase != api.PhaseFinished || done.report.Reason != want || len(done.left) > 0 {
		return fmt.Sprintf("%s: ended with %+v, left %v\n%s", outcome, done.report, done.left, done.out)
	}

	state := f.state()
	if slices.ContainsFunc(state.Runners, func(r control.Runner) bool { return r.Name == label && r.Busy }) {
		return "its runner is still busy"
	}

	if job == nil {
		return ""
	}

	says := f.says[0]
	if outcome == "failure" {
		says = f.says[1]
	}

	if !strings.Contains(done.report.Message, says) || !strings.Contains(done.report.Log, f.logs) || !strings.Contains(done.out, "phase=Running") {
		return fmt.Sprintf("the last report is %+v, want %q, and %q in its log\n%s", done.report, says, f.logs, done.out)
	}

	if f.trace != nil && strings.Contains(f.trace(job.ID), "glrt-") {
		return "the job can print the runner's token: " + f.trace(job.ID)
	}

	for _, seen := range state.Jobs {
		if seen.ID == job.ID && (seen.Conclusion != outcome || !f.by(seen, label)) {
			return fmt.Sprintf("the platform has %+v, want %s\n%s", seen, outcome, done.out)
		}
	}

	return ""
}

// by returns true if the runner ran the job. It always returns true for the generic sender, which has no runners.
func (f platformSite) by(job control.Job, runner string) bool {
	return job.RunnerName == runner || f.platform.Traits().Slug == "generic"
}

// asks returns a label in the form in which a job requires it, and has in the form in which a pool has it.
func (f platformSite) asks(label string) []string {
	if f.platform.Traits().Slug == "buildkite" {
		return []string{"queue=default", "name=" + label}
	}

	return []string{label}
}

func (f platformSite) has(label string) []string {
	if f.platform.Traits().Slug == "buildkite" {
		return []string{"name=" + label}
	}

	return []string{label}
}

// TestJobOfEachPlatform tests all steps on each platform: a job is queued, the program runs the platform's runner, and
// the platform records the result of the job.
func TestJobOfEachPlatform(t *testing.T) {
	t.Parallel()

	for name, site := range platformSites(t) {
		for _, outcome := range []string{"success", "failure", "idle"} {
			if outcome == "idle" && !site.idles {
				continue
			}

			t.Run(name+" "+outcome, func(t *testing.T) {
				t.Parallel()

				if problem := site.oneJob(t, name+"-"+outcome, outcome); problem != "" {
					t.Error(problem)
				}
			})
		}
	}
}

// TestJobThatIsAnothers checks that a machine stops if another agent has taken its job.
func TestJobThatIsAnothers(t *testing.T) {
	t.Parallel()

	s := buildkitetest.New(t, buildkitesim.Options{})
	site := buildkiteSite(s)
	job := site.queue(control.JobSpec{Labels: site.asks("theirs"), Command: "sleep 60"})[0]

	spec, config, err := site.machine(t, "theirs", site.has("theirs"), &job)
	if err != nil {
		t.Fatal(err)
	}

	other := s.StartAgent(t, job.Key, config.RunnerToken, nil)
	s.WaitUntil("another agent has the job", func(st control.State) bool { return st.Jobs[0].Status == "in_progress" })

	done, err := boot(t, spec, config)
	other.Abort()
	other.Wait()

	if got := done.report; err != nil || got.Phase != api.PhaseFinished || got.Reason != api.ReasonJobGone || got.Result != "" {
		t.Errorf("%v: ended with %+v\n%s", err, got, done.out)
	}
}

// TestToldToStop checks that a machine stops its runner on SIGTERM, and that the runner goes offline at the platform.
func TestToldToStop(t *testing.T) {
	t.Parallel()

	sites := platformSites(t)

	for _, name := range []string{v1alpha1.WorkloadGitHubActions, byToken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, config, err := sites[name].machine(t, name, []string{name}, nil)
			if err != nil {
				t.Fatal(err)
			}

			config.IdleTimeout = 0

			dir, err := laidOut(t, config)
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

			report, err := lastReport(dir)
			if err != nil || report.Reason != api.ReasonTerminated || !strings.Contains(report.Message, "was stopped") {
				t.Errorf("%v: ended with %+v", err, report)
			}

			online := func(r control.Runner) bool { return r.Name == name && r.Online }
			if runners := sites[name].state().Runners; slices.ContainsFunc(runners, online) {
				t.Errorf("its runner is still online: %+v", runners)
			}
		})
	}
}
