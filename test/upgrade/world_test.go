// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	m.Run()
}

// seenFor is how long a phase has to last to be written: what passes by is kept in memory.
const seenFor = 6 * time.Second

// start starts an API server with the CRDs of a folder.
func start(t *testing.T, crds string) *kube.Env {
	t.Helper()

	return kube.Start(t, kube.WithCRDs(crds), kube.WithScheme(v1alpha1.AddToScheme, infrav1.AddToScheme, bridgev1.AddToScheme))
}

// world is a fleet whose machines take long enough for each of their phases to be seen.
func world(t *testing.T, env *kube.Env) *fleet.Fleet {
	t.Helper()

	model := fleet.Model()
	model.Delays.Clone, model.Delays.Boot, model.Delays.Destroy = seenFor, seenFor, seenFor

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Runners.JobSilence = time.Second // webhooks that found no operator are made up for by asking
	f.Populate(6)

	return f
}

// queue queues jobs that take so long.
func queue(f *fleet.Fleet, jobs int, long time.Duration) {
	f.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}, Count: jobs, Duration: long})
}

// machines gives the VM of each claim that has one, and how many claims are in each phase.
func machines(f *fleet.Fleet) (vms map[string]string, phases map[v1alpha1.MachineClaimPhase]int) {
	f.T.Helper()

	var claims v1alpha1.MachineClaimList
	if err := f.Client.List(f.T.Context(), &claims, client.InNamespace(f.Namespace)); err != nil {
		f.T.Fatal(err)
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

// busy waits until machines run jobs, and others are on their way.
func busy(f *fleet.Fleet) {
	f.T.Helper()

	queue(f, 2, 4*seenFor)
	f.Eventually("two machines with a job", func() (bool, string) {
		running := 0

		for _, job := range f.GitHub.State().Jobs {
			if job.Status == "in_progress" {
				running++
			}
		}

		return running == 2, strconv.Itoa(running)
	})

	queue(f, 2, time.Second)
	f.Eventually("machines on their way", func() (bool, string) {
		vms, phases := machines(f)

		return phases[v1alpha1.MachineClaimProvisioning]+phases[v1alpha1.MachineClaimBootstrapping] >= 2 && len(vms) == 4, fmt.Sprint(phases)
	})
}
