// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// TestJobs runs a job for each bootstrap method on an attested machine. Nothing is left after it.
func TestJobs(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		method string
		auth   string
	}{
		"runner-token":                    {method: v1alpha1.BootstrapRunnerToken},
		"callback by SVID":                {method: v1alpha1.BootstrapCallback},
		"external-secrets by JWT-SVID":    {method: v1alpha1.BootstrapExternalSecrets, auth: guest.SecretsAuthJWT},
		"external-secrets by certificate": {method: v1alpha1.BootstrapExternalSecrets, auth: guest.SecretsAuthCert},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newFixture(t, tc.method, settings{})
			if tc.auth != "" {
				w.useVault(tc.auth, "runners/"+w.Namespace+"/runner")
			}

			w.createAndStart()
			w.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}})
			w.EventuallyEvent("Attested")
			w.EventuallyJobsDone(1)
			w.waitForCleanup()

			if job := w.GitHub.State().Jobs[0]; job.Conclusion != "success" {
				t.Errorf("the job ended with %s", job.Conclusion)
			}
		})
	}
}
