// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/workload"
)

// readCacheGuide returns the template in the guide, and checks that it matches the sample.
func readCacheGuide(t *testing.T) *v1alpha1.HypervisorMachineTemplate {
	t.Helper()

	var guide, sample v1alpha1.HypervisorMachineTemplate

	page, err := os.ReadFile("../../docs/guides/cache.md")
	if err != nil {
		t.Fatal(err)
	}

	block := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the guide has no template")
	}

	text, err := os.ReadFile("../../deploy/samples/hypervisormachinetemplate-cache.yaml")
	if err != nil {
		t.Fatal(err)
	}

	for into, from := range map[*v1alpha1.HypervisorMachineTemplate][]byte{&guide: block[1], &sample: text} {
		if err := yaml.UnmarshalStrict(from, into); err != nil {
			t.Fatal(err)
		}
	}

	if diff := cmp.Diff(sample, guide); diff != "" {
		t.Errorf("the guide's template is not the sample (-sample +guide):\n%s", diff)
	}

	return &guide
}

// renderConfig returns the configuration on the cloud-init ISO of a machine of the template.
func renderConfig(
	t *testing.T, template *v1alpha1.HypervisorMachineTemplate, spec workload.RunnerSpec, credential workload.Credential,
) *api.Config {
	t.Helper()

	claim := &v1alpha1.MachineClaim{}
	claim.Namespace, claim.Name, claim.UID = "ci", "linux-abc12", "11111111-2222-4333-8444-555555555555"

	seed, err := vmspec.RenderSeed(vmspec.Input{
		Claim: claim, Template: template, Runner: spec, Request: vmspec.NewRunnerRequest(claim, spec, vmspec.Settings{OperatorUID: "op"}),
		Names: vmspec.NewNames(claim, template, &v1alpha1.HypervisorCluster{}, false), Credential: credential,
	})
	if err != nil {
		t.Fatal(err)
	}

	var data struct {
		Files []struct{ Path, Content string } `json:"write_files"`
	}
	if err := yaml.Unmarshal(seed.UserData, &data); err != nil {
		t.Fatal(err)
	}

	var config api.Config

	for _, file := range data.Files {
		if file.Path == api.ConfigPath {
			if err := json.Unmarshal([]byte(file.Content), &config); err != nil {
				t.Fatal(err)
			}
		}
	}

	return &config
}

// TestJobHasCachesOfTemplate checks on each platform that a job has the caches and the environment of the guide's
// template, which pass through cloud-init, the bootstrap service and the runner. An unavailable cache is omitted.
func TestJobHasCachesOfTemplate(t *testing.T) {
	t.Parallel()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = listener.Close() })

	guide := readCacheGuide(t)
	up, down := "http://"+listener.Addr().String(), "http://127.0.0.1:1"
	github := []string{"CUSTOM_ACTIONS_RESULTS_URL", "ACTIONS_RESULTS_URL"}

	for name, site := range newTestPlatforms(t) {
		for cache, names := range map[string][]string{up: map[string][]string{
			v1alpha1.WorkloadGitHubActions: github, githubByToken: github, "gitea-actions": {"ACTIONS_CACHE_URL"},
		}[name], down: nil} {
			// Two test platforms share one CI platform, so that each machine needs its own label.
			label := strings.ReplaceAll(name, " ", "-") + map[string]string{up: "-up", down: "-down"}[cache]
			t.Run(label, func(t *testing.T) {
				t.Parallel()

				want := map[string]string{}
				for name, value := range guide.Spec.Environment {
					want[name] = string(value)
				}

				for _, name := range names {
					want[name] = cache + "/"
				}

				template := guide.DeepCopy()
				template.Spec.Cache.ActionsCacheURL = v1alpha1.CacheURL(cache)

				if got := readJobEnvironment(t, site, label, template); !cmp.Equal(got, want) {
					t.Errorf("environment of the job (-want +got):\n%s", cmp.Diff(want, got))
				}
			})
		}
	}
}

// readJobEnvironment runs a job on a machine of the template, and returns the job's environment variables for the
// template's environment and for caches.
func readJobEnvironment(
	t *testing.T, site testPlatform, label string, template *v1alpha1.HypervisorMachineTemplate,
) map[string]string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "environment")
	job := site.queueJobs(control.JobSpec{Labels: site.newJobLabels(label), Command: "env > " + file})[0]

	spec, credential, err := site.issueCredential(t, template, label, site.newPoolLabels(label), &job)
	if err != nil {
		t.Fatal(err)
	}

	config := renderConfig(t, template, spec, credential)
	config.RunnerName = label

	if diff := cmp.Diff([]string{string(template.Spec.Cache.RegistryMirrors[0])}, config.Cache.RegistryMirrors); diff != "" {
		t.Errorf("mirrors (-want +got):\n%s", diff)
	}

	done, err := runService(t, spec, config)
	if err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: %+v\n%s", err, done.report, done.output)
	}

	out := map[string]string{}

	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if _, isSet := template.Spec.Environment[name]; isSet || strings.Contains(name, "ACTIONS_") && strings.HasSuffix(name, "_URL") {
			out[name] = value
		}
	}

	return out
}
