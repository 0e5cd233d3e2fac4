// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func TestRunnerName(t *testing.T) {
	t.Parallel()

	const uid = types.UID("12345678-9abc-def0-1234-56789abcdef0")

	for claim, want := range map[string]string{
		"pool-x7k2p":                         "pool-x7k2p-12345678",
		strings.Repeat("a", 63):              strings.Repeat("a", 55) + "-12345678",
		strings.Repeat("a", 54) + "-bcdefgh": strings.Repeat("a", 54) + "-12345678",
	} {
		if got := workload.RunnerName(claim, uid); got != want || len(got) > 64 {
			t.Errorf("RunnerName(%q) = %q, want %q", claim, got, want)
		}
	}

	if got := workload.RunnerName("claim", "ab"); got != "claim-ab" {
		t.Errorf("a short uid: %q", got)
	}

	if got := workload.RunnerName("claim", ""); got != "claim" {
		t.Errorf("no uid: %q", got)
	}
}

func TestRunnerLabels(t *testing.T) {
	t.Parallel()

	got := github.RunnerLabels([]string{"Linux", "linux", " gpu ", "Self-Hosted", "", "x64"})
	want := []string{"self-hosted", "hyperfleet", "ephemeral", "Linux", "gpu", "x64"}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("RunnerLabels (-want +got):\n%s", diff)
	}
}
