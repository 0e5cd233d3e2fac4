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

func scaleSetPage(t *testing.T) (page string, pool, sample v1alpha1.RunnerPool) {
	t.Helper()

	text, err := os.ReadFile(scaleSetGuide)
	if err != nil {
		t.Fatal(err)
	}

	block := regexp.MustCompile("(?s)```yaml\n(apiVersion.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("the guide shows no pool")
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

func TestScaleSetGuideShowsTheSample(t *testing.T) {
	t.Parallel()

	page, pool, sample := scaleSetPage(t)
	if diff := cmp.Diff(sample, pool); diff != "" {
		t.Errorf("the guide's pool is not the sample (-sample +guide):\n%s", diff)
	}

	name := sample.Spec.Workload.Config.GitHub.ScaleSet
	for _, text := range []string{
		"runs-on: " + name, github.ReasonScaleSet, github.ReasonScaleSetInUse, github.ReasonGroup, github.ReasonPermission,
	} {
		if !strings.Contains(page, text) {
			t.Errorf("the guide does not say %q", text)
		}
	}
}

// The guide's pool hears of a job that asks for its set, with the rights that the guide
// names and no webhook.
func TestScaleSetGuideWorks(t *testing.T) {
	t.Parallel()

	_, pool, _ := scaleSetPage(t)
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
		t.Fatal("the pool's provider does not listen")
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	heard := false
	err = streamer.StreamJobs(ctx, func() int { return int(pool.Spec.Scaling.MaxReplicas) }, func(_ context.Context, jobs []workload.Job) error {
		if len(jobs) == 0 {
			server.Queue(control.JobSpec{Labels: []string{config.ScaleSet}})

			return nil
		}

		if heard = platform.MatchJob(spec, jobs[0]).Matched; !heard {
			t.Errorf("the pool does not take %+v", jobs[0])
		}

		cancel()

		return nil
	})

	if !heard || !errors.Is(err, context.Canceled) {
		t.Errorf("heard of the job: %t; Stream = %v", heard, err)
	}

	if state := server.State(); state.Webhooks.Delivered > 0 {
		t.Errorf("%d webhooks were sent", state.Webhooks.Delivered)
	}
}
