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
	"sync/atomic"
	"testing"
	"time"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	buildkitesim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	genericsim "github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	githubsim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	gitlabsim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
	"github.com/hyperfleet/hyperfleet/workload/generic"
	"github.com/hyperfleet/hyperfleet/workload/github"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

// platformSite is one simulated platform, for machines of any pool.
type platformSite struct {
	platform workload.Platform
	// pool gives the settings of a template and of a pool whose runners have the labels.
	pool    func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig)
	secrets map[string]string
	queue   func(control.JobSpec) []control.Job
	state   func() control.State
	// jobs is where the generic sender's command reports to.
	jobs string
	// idles: a runner may be without a job.
	idles bool
	// opened is the scope's one provider: pools of one scope share it.
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
	kite := buildkitetest.New(t, buildkitesim.Options{})
	hooks := generictest.NewReceiver(t, nil)
	sender := generictest.New(t, genericsim.Options{Webhook: control.WebhookTarget{URL: hooks.URL}})

	return map[string]platformSite{
		v1alpha1.WorkloadGitHubActions: {
			opened: &sharedProvider{}, platform: github.Platform{}, secrets: map[string]string{"token": githubtest.PAT}, queue: hub.Queue, state: hub.State, idles: true,
			pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{APIURL: hub.URL}},
					v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Repository: githubtest.Repo, Labels: labels}}
			},
		},
		v1alpha1.WorkloadGitLabCI: {
			opened: &sharedProvider{}, platform: gitlab.Platform{}, secrets: map[string]string{"token": gitlabtest.Token}, queue: lab.Queue, state: lab.State, idles: true,
			pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{}},
					v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{URL: lab.URL, ProjectID: gitlabtest.Project, Tags: labels}}
			},
		},
		v1alpha1.WorkloadBuildkite: {
			opened: &sharedProvider{}, platform: buildkite.Platform{}, secrets: map[string]string{"token": buildkitetest.Token}, queue: kite.Queue, state: kite.State,
			pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Endpoint: kite.Endpoint}},
					v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: buildkitetest.Organization, Tags: labels}}
			},
		},
		v1alpha1.WorkloadGeneric: {
			opened: &sharedProvider{}, platform: generic.Platform{}, queue: sender.Queue, state: sender.State, jobs: sender.URL + "/jobs/",
			pool: func(labels []string) (v1alpha1.BootstrapConfig, v1alpha1.WorkloadConfig) {
				return v1alpha1.BootstrapConfig{}, v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
					Source: generictest.Source, Labels: labels, Command: []string{forgesim, "generic-job"},
				}}
			},
		},
	}
}

// life is one machine's life, from the pool's settings to its last report.
type life struct {
	spec   workload.RunnerSpec
	report api.Report
	left   []string
	out    string
}

// live runs one machine of a pool with the labels. Without a job it waits for one.
func (f platformSite) live(t *testing.T, name string, labels []string, job *control.Job) (life, error) {
	t.Helper()

	bootstrap, load := f.pool(labels)
	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Name, template.Spec.Bootstrap.Config = "linux", &bootstrap

	spec, err := f.platform.Runner(template, v1alpha1.Workload{Config: &load})
	if err != nil {
		return life{}, err
	}

	f.opened.once.Do(func() {
		f.opened.provider, f.opened.err = f.platform.Open(workload.Config{Runner: spec, Template: template, Secrets: f.secrets})
		if f.opened.err == nil {
			f.opened.err = f.opened.provider.Validate(t.Context())
		}
	})

	if f.opened.err != nil {
		return life{}, f.opened.err
	}

	provider := f.opened.provider

	request := workload.RunnerRequest{Name: name, Labels: spec.Labels, Registration: spec.Registration}
	if job != nil && spec.Binds {
		request.Job = &workload.Job{
			ID: job.Key, Platform: spec.Platform, Name: job.Name, Repository: job.Repo, URL: f.jobs + job.Key,
			Labels: job.Labels,
		}
	}

	credential, err := issued(t, provider, request)
	if err != nil {
		return life{}, err
	}

	config := &api.Config{
		Method: api.MethodRunnerToken, Platform: spec.Platform, RunnerName: name, Labels: spec.Labels,
		Runner: spec.Program, Command: spec.Command,
	}
	if job == nil {
		config.IdleTimeout = api.Duration(300 * time.Millisecond)
	}

	credential.Apply(config)

	return boot(t, spec, config)
}

// issued waits as the operator does where a platform's rate limit is spent.
func issued(t *testing.T, provider workload.Provider, request workload.RunnerRequest) (workload.Credential, error) {
	t.Helper()

	for {
		credential, err := provider.Issue(t.Context(), request)

		limited, ok := errors.AsType[*workload.Error](err)
		if !ok || limited.Kind != workload.RateLimited {
			return credential, err
		}

		select {
		case <-t.Context().Done():
			return credential, err
		case <-time.After(max(limited.After, 100*time.Millisecond)):
		}
	}
}

// boot runs the bootstrap service as the machine would.
func boot(t *testing.T, spec workload.RunnerSpec, config *api.Config) (life, error) {
	t.Helper()

	data, err := json.Marshal(config)
	if err != nil {
		return life{}, err
	}

	dir := t.TempDir()
	path := filepath.Join(dir, api.ConfigPath)

	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o600)); err != nil {
		return life{}, err
	}

	if said, err := exec.Command(forgesim, "image", "--link", dir).CombinedOutput(); err != nil {
		return life{}, fmt.Errorf("%w: %s", err, said)
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
			done.left = append(done.left, "the credential in its words")
		}
	}

	for _, file := range []string{api.ConfigPath, spec.Program.WorkDir, "/opt/actions-runner/.credentials"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			done.left = append(done.left, file)
		}
	}

	return done, nil
}

// Whatever the platform and whatever becomes of the job, a machine registers the runner
// that its configuration names, does one job or waits no longer than it may, and ends
// itself with nothing of its credential left. How its identity is proven is not part of
// this version: the credential comes with its cloud-init ISO.
//
// Feature: hyperfleet-operator, Property 11: CI/CD Platform Integration via VM Bootstrap Service
func TestPropertyMachineDoesOneJob(t *testing.T) {
	t.Parallel()

	sites := platformSites(t)

	var count atomic.Int64

	one := func(platform, outcome string) string {
		site := sites[platform]
		if outcome == "idle" && !site.idles {
			outcome = "success"
		}

		label := fmt.Sprintf("%s-%d", platform[:3], count.Add(1))

		return site.oneJob(t, label, outcome)
	}

	property.Check(t, "a machine does one job and ends", lives(), prop.ForAll(one,
		gen.OneConstOf(v1alpha1.WorkloadGitHubActions, v1alpha1.WorkloadGitLabCI, v1alpha1.WorkloadBuildkite, v1alpha1.WorkloadGeneric),
		gen.OneConstOf("success", "failure", "idle")))
}

func (f platformSite) oneJob(t *testing.T, label, outcome string) string {
	t.Helper()

	var job *control.Job

	if outcome != "idle" {
		spec := control.JobSpec{Labels: f.asks(label), Duration: time.Millisecond}
		if outcome == "failure" {
			spec.Command = "exit 7"
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
		return "its runner is busy for ever"
	}

	if job == nil {
		return ""
	}

	for _, seen := range state.Jobs {
		if seen.ID == job.ID && seen.Conclusion != outcome {
			return fmt.Sprintf("the platform has %+v, want %s\n%s", seen, outcome, done.out)
		}
	}

	return ""
}

// asks and has are a label as a job asks for it and as a pool has it.
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

// Whatever labels, tags or queue a pool asks for, the runner that a machine registers has
// them at the platform, and the job that asks for all of them runs on it.
//
// Feature: hyperfleet-operator, Property 12: CI/CD Runner Configuration
func TestPropertyRunnerHasThePoolsLabels(t *testing.T) {
	t.Parallel()

	sites := platformSites(t)

	var count atomic.Int64

	property.Check(t, "a runner has what its pool says", lives(), prop.ForAll(func(platform string, words []string) string {
		site := sites[platform]
		own := fmt.Sprintf("%s-%d", platform[:3], count.Add(1))
		labels, asked := site.has(own), site.asks(own)

		for i, word := range words {
			if site.platform.Traits().Slug == "buildkite" {
				word = fmt.Sprintf("key%d=%s", i, word)
			}

			labels, asked = append(labels, word), append(asked, word)
		}

		job := site.queue(control.JobSpec{Labels: asked, Duration: time.Millisecond})[0]

		done, err := site.live(t, own, unique(labels), &job)
		if err != nil {
			return err.Error()
		}

		for _, label := range labels {
			if !slices.Contains(done.spec.Labels, label) {
				return fmt.Sprintf("the runner has %v, and not %s", done.spec.Labels, label)
			}
		}

		for _, seen := range site.state().Jobs {
			// A sender without a platform knows no runners.
			mine := seen.RunnerName == own || site.platform.Traits().Slug == "generic"
			if seen.ID == job.ID && (seen.Conclusion != "success" || !mine) {
				return fmt.Sprintf("the job that asks for %v: %+v\n%s", asked, seen, done.out)
			}
		}

		return ""
	}, gen.OneConstOf(v1alpha1.WorkloadGitHubActions, v1alpha1.WorkloadGitLabCI, v1alpha1.WorkloadBuildkite, v1alpha1.WorkloadGeneric),
		gen.SliceOfN(2, gen.RegexMatch(`^[a-z][a-z0-9]{2,8}$`))))
}

func unique(labels []string) []string {
	slices.Sort(labels)

	return slices.Compact(labels)
}

// lives are whole lives, of programs: a few show that the platforms are wired as the tests of
// each (TestJobOfASimulatedForge and its like) have it.
func lives() property.Options {
	return property.Options{Brief: 8, Workers: 4, NoShrink: true}
}

// lastReport is what the machine of the root directory said last.
func lastReport(dir string) (api.Report, error) {
	var report api.Report

	data, err := os.ReadFile(filepath.Join(dir, api.StatusPath))
	if err == nil {
		err = json.Unmarshal(data, &report)
	}

	return report, err
}
