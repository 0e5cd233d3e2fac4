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

// TestTPM has a job run on a machine that has proven by its TPM who it is: the key is made
// there, certified by the operator, and shown to the SPIRE server. Nothing is left after it.
func TestTPM(t *testing.T) {
	t.Parallel()

	authority, devices := tpm.NewAuthority(t), tpm.NewDevID(t)
	device := authority.NewTPM(t) // before its server: the authority is there with it
	w := newWorld(t, v1alpha1.BootstrapCallback, settings{
		spire: []spire.Option{spire.WithPlugin(authority.AttestorConfig(devices))},
	})
	w.DevID = devices
	w.template.Spec.Attestation.Method = v1alpha1.AttestationTPM

	// Machines are processes, and find the TPM's socket in the place of its device.
	dev := filepath.Join(w.image, "dev")
	if err := errors.Join(os.MkdirAll(dev, 0o755), os.Symlink(device.Path, filepath.Join(dev, "tpmrm0"))); err != nil {
		t.Fatal(err)
	}

	w.begin()
	w.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}})
	w.EventuallyEvent(devid.ReasonCertified)
	w.EventuallyEvent("Attested")
	w.EventuallyJobsDone(1)
	w.eventuallyForgotten()

	if job := w.GitHub.State().Jobs[0]; job.Conclusion != "success" {
		t.Errorf("the job ended with %s", job.Conclusion)
	}
}
