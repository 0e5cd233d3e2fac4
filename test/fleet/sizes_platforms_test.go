// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	buildkitesim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	giteasim "github.com/hyperfleet/hyperfleet/sim/gitea"
	"github.com/hyperfleet/hyperfleet/sim/gitea/giteatest"
	gitlabsim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// sizedPlatform is a CI platform whose jobs request sizes.
type sizedPlatform struct {
	url, token string
	bootstrap  v1alpha1.BootstrapConfig
	load       v1alpha1.Workload
	queue      func(control.JobSpec) []control.Job
	state      func() control.State
}

// platformStart starts the simulator of a platform, which sends its webhooks to the target.
type platformStart func(f *fleet.Fleet, token v1alpha1.SecretValueSource, target control.WebhookTarget) sizedPlatform

// listSizedPlatforms returns functions that start the simulator of each platform. The pool's own label is
// os=linux.
func listSizedPlatforms() map[string]platformStart {
	label := []string{"os=linux"}

	return map[string]platformStart{
		v1alpha1.WorkloadGitLabCI: func(f *fleet.Fleet, token v1alpha1.SecretValueSource, target control.WebhookTarget) sizedPlatform {
			s := gitlabtest.New(f.T, gitlabsim.Options{Webhook: target})

			return sizedPlatform{
				s.URL, gitlabtest.Token, v1alpha1.BootstrapConfig{GitLab: &v1alpha1.GitLabBootstrap{Credentials: token}},
				v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{
					GitLab: &v1alpha1.GitLabCIConfig{URL: s.URL, ProjectID: gitlabtest.Project, Tags: label},
				}}, s.Queue, s.State,
			}
		},
		v1alpha1.WorkloadBuildkite: func(f *fleet.Fleet, token v1alpha1.SecretValueSource, target control.WebhookTarget) sizedPlatform {
			s := buildkitetest.New(f.T, buildkitesim.Options{Webhook: target})

			return sizedPlatform{
				s.Endpoint, buildkitetest.Token,
				v1alpha1.BootstrapConfig{Buildkite: &v1alpha1.BuildkiteBootstrap{Credentials: token, Endpoint: s.Endpoint}},
				v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{
					Buildkite: &v1alpha1.BuildkiteConfig{Organization: buildkitetest.Organization, Tags: label},
				}}, s.Queue, s.State,
			}
		},
		v1alpha1.WorkloadGiteaActions: func(f *fleet.Fleet, token v1alpha1.SecretValueSource, target control.WebhookTarget) sizedPlatform {
			s := giteatest.New(f.T, giteasim.Options{Webhook: target})

			return sizedPlatform{
				s.URL, giteatest.Token, v1alpha1.BootstrapConfig{Gitea: &v1alpha1.GiteaBootstrap{Credentials: token}},
				v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{
					Gitea: &v1alpha1.GiteaConfig{URL: s.URL, Repository: giteatest.Repository, Labels: label},
				}}, s.Queue, s.State,
			}
		},
	}
}

// TestJobsOfEveryPlatformGetTheirSize checks, with the real bootstrap service and on every platform, that a job
// that requests a size runs on a VM of this size, and other jobs on a VM of the template's size.
func TestJobsOfEveryPlatformGetTheirSize(t *testing.T) {
	t.Parallel()

	for name, start := range listSizedPlatforms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, site := startPlatformFleet(t, name, start)
			checkSizes(t, f, site)
		})
	}
}

// startPlatformFleet starts a fleet with the real bootstrap service, and a pool of up to four machines for a platform that
// the operator polls.
func startPlatformFleet(t *testing.T, platform string, start platformStart) (*fleet.Fleet, sizedPlatform) {
	t.Helper()

	f := newProgramFleet(t)
	site := start(f, newPlatformToken(), control.WebhookTarget{})
	template, pool := newPlatformPool(f, platform, site)
	pool.Spec.Workload.Webhook, pool.Spec.Demand = nil, newPolling(time.Second)
	pool.Spec.SizeLabels = &v1alpha1.SizeLabels{MaxCPU: new(int32(8)), MaxMemory: new(resource.MustParse("8Gi"))}

	createAndStart(f, template, pool)
	f.EventuallyReady(pool)

	return f, site
}

// newProgramFleet returns a fleet whose machines run the real bootstrap service and the simulated runners.
func newProgramFleet(t *testing.T) *fleet.Fleet {
	t.Helper()

	image, model := t.TempDir(), fleet.Model()
	if out, err := exec.Command(filepath.Join(programs, "forgesim"), "image", "--link", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	model.Guest = pve.Guest{
		Kind: pve.GuestExec, Program: filepath.Join(programs, "bootstrap-service"), ImageDir: image, WorkDir: t.TempDir(),
	}

	return fleet.New(t, env, fleet.Options{Model: model})
}

// newPlatformToken returns the place of a platform's token, which newPlatformPool creates.
func newPlatformToken() v1alpha1.SecretValueSource {
	return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "platform", Key: "token"}}
}

// newPlatformPool returns a template and a pool of up to four machines for a platform. It creates the Secret with the
// platform's token.
func newPlatformPool(
	f *fleet.Fleet, platform string, site sizedPlatform,
) (*v1alpha1.HypervisorMachineTemplate, *v1alpha1.RunnerPool) {
	f.T.Helper()

	f.Runners.PlatformURLs = append(f.Runners.PlatformURLs, site.url)
	f.Create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "platform"}, StringData: map[string]string{"token": site.token},
	})

	template, pool := f.NewTemplate(), f.NewPool(4)
	template.Spec.Bootstrap.Config = &site.bootstrap
	webhook := pool.Spec.Workload.Webhook
	pool.Spec.Workload = site.load
	pool.Spec.Workload.Type, pool.Spec.Workload.Webhook = platform, webhook

	return template, pool
}

// checkSizes queues a job with a size and a job without, and checks their VMs while they run.
func checkSizes(t *testing.T, f *fleet.Fleet, site sizedPlatform) {
	t.Helper()

	command, release := newHeldCommand(t)
	site.queue(control.JobSpec{Labels: []string{"os=linux", "cpu=4", "memory=3Gi"}, Command: command})
	site.queue(control.JobSpec{Labels: []string{"os=linux"}, Command: command})

	eventuallyPool(f, "both jobs running", func(s v1alpha1.RunnerPoolStatus) bool { return s.BusyReplicas >= 2 })

	cores := map[string]int{}
	for _, vm := range f.PVE.Snapshot().VMs {
		cores[vm.Config["cores"]+" "+vm.Config["memory"]]++
	}

	if cores["4 3072"] != 1 || cores["2 2048"] == 0 {
		t.Errorf("VMs by cores and MiB: %v; want one of 4 and 3072, and others of 2 and 2048", cores)
	}

	for _, claim := range listClaims(f) {
		if r := claim.Status.VMRef.Resources; claim.Spec.Size != nil && (r.CPU != 4 || r.Memory.String() != "3Gi") {
			t.Errorf("quotas count %+v for the sized claim, want 4 cores and 3Gi", r)
		}
	}

	release()
	f.Eventually("both jobs having succeeded", func() (bool, string) {
		done := 0

		for _, job := range site.state().Jobs {
			if job.Conclusion == "success" {
				done++
			}
		}

		return done == 2, strconv.Itoa(done) + " have succeeded"
	})
}
