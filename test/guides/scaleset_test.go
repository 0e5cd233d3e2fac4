// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

const scaleSetGuide = "../../docs/guides/scale-sets.md"

// readScaleSetGuide returns the guide, its pool, and the sample.
func readScaleSetGuide(t *testing.T) (page string, pool, sample v1alpha1.RunnerPool) {
	t.Helper()

	text, err := os.ReadFile(scaleSetGuide)
	if err != nil {
		t.Fatal(err)
	}

	block := regexp.MustCompile("(?s)```yaml\n(apiVersion.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("the guide has no RunnerPool")
	}

	raw, err := os.ReadFile("../../deploy/samples/runnerpool-scale-set.yaml")
	if err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(yaml.UnmarshalStrict(block[1], &pool), yaml.UnmarshalStrict(raw, &sample)); err != nil {
		t.Fatal(err)
	}

	return string(text), pool, sample
}

// TestScaleSetGuideShowsTheSample checks that the guide's pool is the sample, and that the guide explains the
// reasons of conditions.
func TestScaleSetGuideShowsTheSample(t *testing.T) {
	t.Parallel()

	page, pool, sample := readScaleSetGuide(t)
	if diff := cmp.Diff(sample, pool); diff != "" {
		t.Errorf("the pool of the guide differs from the sample (-sample +guide):\n%s", diff)
	}

	name := sample.Spec.Workload.Config.GitHub.ScaleSet
	for _, text := range []string{
		"runs-on: " + name, github.ReasonScaleSet, github.ReasonScaleSetInUse, github.ReasonGroup, github.ReasonPermission,
	} {
		if !strings.Contains(page, text) {
			t.Errorf("the guide does not contain %q", text)
		}
	}
}

// TestScaleSetGuideWorks checks that the guide's pool receives a job for its scale set with the permissions of the
// guide, and without a webhook.
func TestScaleSetGuideWorks(t *testing.T) {
	t.Parallel()

	_, pool, _ := readScaleSetGuide(t)
	config := pool.Spec.Workload.Config.GitHub
	config.Organization = githubtest.Org

	server := githubtest.New(t, sim.Options{PATs: []sim.PAT{
		{Token: "ghp_guide", Permissions: map[string]string{"organization_self_hosted_runners": "write"}},
	}})
	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
		APIURL: server.URL, Credentials: &v1alpha1.SecretValueSource{},
	}}

	platform := github.NewPlatform()

	spec, err := platform.ResolveRunner(template, pool.Spec.Workload)
	if err != nil {
		t.Fatal(err)
	}

	provider, err := platform.Open(workload.Config{
		Runner: spec, Template: template, Secrets: map[string]string{"token": "ghp_guide"},
	})
	if err != nil {
		t.Fatal(err)
	}

	if err := provider.Validate(t.Context()); err != nil {
		t.Fatalf("Validate: %v", err)
	}

	streamer, ok := provider.(workload.Streamer)
	if !ok {
		t.Fatal("the provider of the pool does not stream jobs")
	}

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()

	received := false
	err = streamer.StreamJobs(ctx, func() int { return int(pool.Spec.Scaling.MaxReplicas) }, func(_ context.Context, jobs []workload.Job) error {
		if len(jobs) == 0 {
			server.Queue(control.JobSpec{Labels: []string{config.ScaleSet}})

			return nil
		}

		if received = platform.MatchJob(spec, jobs[0]).Matched; !received {
			t.Errorf("the pool does not match job %+v", jobs[0])
		}

		cancel()

		return nil
	})

	if !received || !errors.Is(err, context.Canceled) {
		t.Errorf("job received: %t; StreamJobs = %v", received, err)
	}

	if state := server.State(); state.Webhooks.Delivered > 0 {
		t.Errorf("%d webhooks were sent", state.Webhooks.Delivered)
	}
}
