// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/devid"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// withTPM makes a world whose machines attest by a TPM. They are processes, and find the
// TPM's socket in the place of its device.
func withTPM(t *testing.T, authority *tpm.Authority, device *tpm.Device) *world {
	t.Helper()

	devices := tpm.DevID(t)
	w := newWorld(t, v1alpha1.BootstrapCallback, settings{
		spire: []spire.Option{spire.WithPlugin(authority.Attestor(devices))},
	})
	w.DevID = devices
	w.template.Spec.Attestation.Method = v1alpha1.AttestationTPM

	dev := filepath.Join(w.image, "dev")
	if err := os.MkdirAll(dev, 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink(device.Path, filepath.Join(dev, "tpmrm0")); err != nil {
		t.Fatal(err)
	}

	return w
}

// TestTPM has a job run on a machine that has proven by its TPM who it is: the key is made
// there, certified by the operator, and shown to the SPIRE server. Nothing is left after it.
func TestTPM(t *testing.T) {
	t.Parallel()

	authority := tpm.NewAuthority(t)
	w := withTPM(t, authority, authority.TPM(t))

	w.begin()
	w.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}})
	w.EventuallyEvent(devid.ReasonCertified)
	w.EventuallyEvent("Attested")
	w.EventuallyDone(1)
	w.eventuallyForgotten()

	if job := w.GitHub.State().Jobs[0]; job.Conclusion != "success" {
		t.Errorf("the job ended with %s", job.Conclusion)
	}
}

// A TPM that no authority of the SPIRE server's has certified is another host's.
func TestTPMOfAnotherHost(t *testing.T) {
	t.Parallel()

	authority := tpm.NewAuthority(t)
	authority.TPM(t) // its authority is there

	w := withTPM(t, authority, tpm.NewAuthority(t).TPM(t))

	w.begin()
	w.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}})
	w.EventuallyEvent("AttestationRefused")

	if job := w.GitHub.State().Jobs[0]; job.Conclusion != "" {
		t.Errorf("the job ended with %s", job.Conclusion)
	}
}
