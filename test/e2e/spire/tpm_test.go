// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/devid"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// TestTPM runs a job on a machine that attests with its TPM. The TPM creates the key, the operator certifies
// it, and the machine proves to the SPIRE server that it has the key. Nothing is left after it.
func TestTPM(t *testing.T) {
	t.Parallel()

	authority, devices := tpm.NewAuthority(t), tpm.NewDevID(t)
	device := authority.NewTPM(t) // creates the authority, which the server needs
	w := newFixture(t, v1alpha1.BootstrapCallback, settings{
		spire: []spire.Option{spire.WithPlugin(authority.AttestorConfig(devices))},
	})
	w.DevID = devices
	w.template.Spec.Attestation.Method = v1alpha1.AttestationTPM

	// Machines are processes. They find the TPM's socket at the path of the device.
	dev := filepath.Join(w.image, "dev")
	if err := errors.Join(os.MkdirAll(dev, 0o755), os.Symlink(device.Path, filepath.Join(dev, "tpmrm0"))); err != nil {
		t.Fatal(err)
	}

	w.createAndStart()
	w.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}})
	w.EventuallyEvent(devid.ReasonCertified)
	w.EventuallyEvent("Attested")
	w.EventuallyJobsDone(1)
	w.waitForCleanup()

	if job := w.GitHub.State().Jobs[0]; job.Conclusion != "success" {
		t.Errorf("the job ended with %s", job.Conclusion)
	}
}
