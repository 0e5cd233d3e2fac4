// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/answers"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
)

// TestAnswerThatGrowsIsRefused sends 306 kB of gzip that decompress to 300 MB of JSON.
func TestAnswerThatGrowsIsRefused(t *testing.T) { answers.CheckResponseLimit(t, openAnswers) }

// TestPlainHTTPIsRefused checks that credentials are never sent unencrypted.
func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()
	answers.CheckEncryption(t, openAnswers)
}

// TestErrorsWithStatus200 checks that a response with an error in it is no empty list.
func TestErrorsWithStatus200(t *testing.T) {
	t.Parallel()
	answers.CheckErrorAnswers(t, openAnswers, "one", "7")
}

func openAnswers(address string) (answers.Client, error) {
	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{Gitea: &v1alpha1.GiteaBootstrap{}}

	runner, err := gitea.Gitea().ResolveRunner(template, v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{
		Gitea: &v1alpha1.GiteaConfig{URL: address, Repository: "a/b"},
	}})
	if err != nil {
		return nil, err
	}

	return gitea.Gitea().Open(workload.Config{Runner: runner, Template: template, Secrets: map[string]string{"token": "a-secret-token"}})
}
