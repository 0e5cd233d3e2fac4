// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	genericsim "github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	giteasim "github.com/hyperfleet/hyperfleet/sim/gitea"
	"github.com/hyperfleet/hyperfleet/sim/gitea/giteatest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// listWrittenPlatforms returns functions that start the simulator of each platform.
func listWrittenPlatforms() map[string]platformStart {
	label := []string{"os=linux"}
	out := listSizedPlatforms()

	out[v1alpha1.WorkloadGitHubActions] = func(f *fleet.Fleet, _ v1alpha1.SecretValueSource, _ control.WebhookTarget) sizedPlatform {
		pool := f.NewPool(0)
		pool.Spec.Workload.Config.GitHub.Labels = label

		return sizedPlatform{
			f.GitHub.URL, "unused", *f.NewTemplate().Spec.Bootstrap.Config, pool.Spec.Workload, f.GitHub.Queue, f.GitHub.State,
		}
	}
	out[v1alpha1.WorkloadForgejoActions] = func(f *fleet.Fleet, token v1alpha1.SecretValueSource, _ control.WebhookTarget) sizedPlatform {
		s := giteatest.New(f.T, giteasim.Options{Forgejo: true})

		return sizedPlatform{
			s.URL, giteatest.Token, v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{Credentials: token}},
			v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{
				Forgejo: &v1alpha1.GiteaConfig{URL: s.URL, Repository: giteatest.Repository, Labels: label},
			}}, s.Queue, s.State,
		}
	}
	out[v1alpha1.WorkloadGeneric] = func(f *fleet.Fleet, _ v1alpha1.SecretValueSource, target control.WebhookTarget) sizedPlatform {
		s := generictest.New(f.T, genericsim.Options{Webhook: target})

		return sizedPlatform{
			s.URL, "unused", *f.NewTemplate().Spec.Bootstrap.Config,
			v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
				Source: generictest.Source, Labels: label, Command: []string{"/usr/bin/generic-job"},
			}}}, s.Queue, s.State,
		}
	}

	return out
}

// TestWritesPerJob checks how many writes to the API server a job causes on each platform, from its webhook until its machine
// is deleted: the claim is created, requested, deleted and released, the job is created, runs, ends and gets its timeline,
// and its log is stored. A status may be written once more for each five seconds that the jobs take, because the machine
// on which the test runs may be slow. The status of the pool and events are of all jobs together.
func TestWritesPerJob(t *testing.T) {
	t.Parallel()

	const (
		jobs       = 4
		writeDelay = 5 * time.Second
	)

	for name, start := range listWrittenPlatforms() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newProgramFleet(t)
			seen := &writeRecorder{}
			f.WrapTransport = seen.wrapTransport
			slug := strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(name, "-ci"), "-actions"))
			site := start(f, newPlatformToken(), control.WebhookTarget{URL: f.Front.URL + "/webhooks/" + slug, Secret: fleet.HookValue})
			template, pool := newPlatformPool(f, name, site)

			createAndStart(f, template, pool)
			f.EventuallyReady(pool)
			seen.take()

			begun := time.Now()
			site.queue(control.JobSpec{Labels: []string{"os=linux"}, Count: jobs})
			f.Eventually("the jobs having succeeded", func() (bool, string) {
				done := 0

				for _, job := range site.state().Jobs {
					if job.Conclusion == "success" {
						done++
					}
				}

				return done == jobs, f.Describe()
			})
			f.EventuallyClean()
			f.Eventually("the timelines of the jobs", func() (bool, string) { return hasEnds(f, jobs) })

			writes := countKinds(seen.take())
			t.Logf("%s: %s", name, formatKinds(writes))

			// On platforms whose webhook tells the end of a job, the machine may be off before that. Then its end is written.
			perJob, want := 0, map[string]int{
				v1alpha1.WorkloadGitHubActions: 10, v1alpha1.WorkloadGiteaActions: 10, v1alpha1.WorkloadGeneric: 9,
				v1alpha1.WorkloadGitLabCI:       11, // the labels of the job, which its webhook lacks
				v1alpha1.WorkloadBuildkite:      10, // the webhook completes what the machine has reported
				v1alpha1.WorkloadForgejoActions: 10, // a poll finds the end of the job, and another one may find it while it runs
			}[name]

			for kind, count := range writes {
				if strings.Contains(kind, "machineclaims") || strings.Contains(kind, "runnerjob") || strings.Contains(kind, "runnerlogs") {
					perJob += count
				}
			}

			if most := want*jobs + 2*jobs*int(time.Since(begun)/writeDelay); perJob > most {
				t.Errorf("%d writes for %d jobs, want at most %d: %s", perJob, jobs, most, formatKinds(writes))
			}
		})
	}
}

// countKinds counts writes by their method, resource and subresource.
func countKinds(writes []string) map[string]int {
	out := map[string]int{}

	for _, write := range writes {
		method, path, _ := strings.Cut(write, " ")
		parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
		kind := []string{method}

		for i, part := range parts {
			// /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME/SUBRESOURCE
			if i > 4 && i != 6 {
				kind = append(kind, part)
			}
		}

		out[strings.Join(kind, " ")]++
	}

	return out
}

func formatKinds(writes map[string]int) string {
	parts := make([]string, 0, len(writes))
	for _, kind := range slices.Sorted(maps.Keys(writes)) {
		parts = append(parts, fmt.Sprintf("%s %d", kind, writes[kind]))
	}

	return strings.Join(parts, ", ")
}
