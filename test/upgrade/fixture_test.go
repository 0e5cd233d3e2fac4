// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// startServer starts an API server with the CRDs of a folder.
func startServer(t *testing.T, crds string) *kube.Env {
	t.Helper()

	return kube.Start(t, kube.WithCRDs(crds))
}

// fixture is a fleet whose guests boot, and whose jobs end, when the test allows it.
type fixture struct {
	*fleet.Fleet

	// boot receives a value for each guest that may boot. over is a file that exists when jobs may end.
	boot chan struct{}
	over string
}

// newFixture creates a fixture.
func newFixture(t *testing.T, env *kube.Env, model pve.Model) *fixture {
	t.Helper()

	w := &fixture{boot: make(chan struct{}), over: filepath.Join(t.TempDir(), "over")}
	guest := fleet.Guest(t)
	model.Guest.Script = func(vm pve.GuestVM) {
		select {
		case <-w.boot:
			guest(vm)
		case <-vm.Context.Done():
		}
	}

	w.Fleet = fleet.New(t, env, fleet.Options{Model: model})
	w.Runners.JobSilence = time.Second // polling finds the jobs whose webhooks failed while no operator was running
	w.Populate(6)

	return w
}

// bootGuests lets this number of guests boot.
func (w *fixture) bootGuests(guests int) {
	for range guests {
		w.boot <- struct{}{}
	}
}

// queueJobs queues jobs that run until endJobs is called.
func (w *fixture) queueJobs(jobs int) {
	w.GitHub.Queue(control.JobSpec{
		Labels: []string{"self-hosted", "linux"}, Count: jobs, Command: "while [ ! -e " + w.over + " ]; do sleep 0.05; done",
	})
}

// endJobs lets all jobs end.
func (w *fixture) endJobs() {
	w.T.Helper()

	if err := os.WriteFile(w.over, nil, 0o600); err != nil {
		w.T.Fatal(err)
	}
}

// listMachines returns the VM of each claim that has one, and the number of claims in each phase.
func (w *fixture) listMachines() (vms map[string]string, phases map[v1alpha1.MachineClaimPhase]int) {
	w.T.Helper()

	var claims v1alpha1.MachineClaimList
	if err := w.Client.List(w.T.Context(), &claims, client.InNamespace(w.Namespace)); err != nil {
		w.T.Fatal(err)
	}

	vms, phases = map[string]string{}, map[v1alpha1.MachineClaimPhase]int{}

	for i := range claims.Items {
		phases[claims.Items[i].Status.Phase]++

		if ref := claims.Items[i].Status.VMRef; ref != nil {
			vms[claims.Items[i].Name] = ref.VMID
		}
	}

	return vms, phases
}

// waitForRunningJobs waits until this number of jobs run.
func (w *fixture) waitForRunningJobs(jobs int) {
	w.T.Helper()
	w.Eventually("jobs being in progress", func() (bool, string) {
		running := 0

		for _, job := range w.GitHub.State().Jobs {
			if job.Status == "in_progress" {
				running++
			}
		}

		return running == jobs, strconv.Itoa(running)
	})
}
