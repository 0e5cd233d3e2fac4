// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// readPools returns the pools of a sample, each with room for two machines.
func readPools(t *testing.T, sample string) []demand.Pool {
	t.Helper()

	raw, err := os.ReadFile("../../deploy/samples/" + sample)
	if err != nil {
		t.Fatal(err)
	}

	var out []demand.Pool

	for document := range strings.SplitSeq(string(raw), "\n---\n") {
		if !strings.Contains(document, "kind: RunnerPool\n") {
			continue
		}

		pool := &v1alpha1.RunnerPool{}
		if err := yaml.UnmarshalStrict([]byte(document), pool); err != nil {
			t.Fatal(err)
		}

		pool.Namespace, pool.Spec.Scaling.MaxReplicas = "ns", 2
		out = append(out, newPlatforms().NewPool(pool, nil))
	}

	return out
}

// TestArchitecturesOverflow checks the pools of two architectures in the samples: a job without an architecture takes what is
// free, and a job with one gets its own, or waits for it.
func TestArchitecturesOverflow(t *testing.T) {
	t.Parallel()

	jobs := func(labels ...string) []v1alpha1.RunnerJob {
		return newQueuedJobs(len(labels), func(i int, job *v1alpha1.RunnerJobSpec) {
			job.Repository, job.Organization = "example/app", "example"
			job.Labels = strings.Split(labels[i], " ")
		})
	}

	for name, tc := range map[string]struct{ jobs, want []string }{
		"no architecture": {
			[]string{"self-hosted linux", "linux", "linux", "linux"},
			[]string{"job-00 linux-x64", "job-01 linux-x64", "job-02 linux-arm64", "job-03 linux-arm64"},
		},
		"in GitHub's own spelling": {
			[]string{"self-hosted Linux ARM64", "self-hosted Linux X64"}, []string{"job-00 linux-arm64", "job-01 linux-x64"},
		},
		"a full architecture is waited for": {
			[]string{"arm64", "arm64", "arm64", "x64", "linux"},
			[]string{"job-00 linux-arm64", "job-01 linux-arm64", "job-02 linux-arm64", "job-03 linux-x64", "job-04 linux-x64"},
		},
		"overflow leaves no machine for the architecture": {
			[]string{"x64", "x64", "linux", "x64"},
			[]string{"job-00 linux-x64", "job-01 linux-x64", "job-02 linux-arm64", "job-03 linux-x64"},
		},
		"an unknown architecture": {[]string{"linux riscv64"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := assignJobs(jobs(tc.jobs...), readPools(t, "runnerpool-architectures.yaml")...)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("assignment (-want +got):\n%s", diff)
			}
		})
	}
}
