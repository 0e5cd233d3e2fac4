// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// A job that asks for a size gets a VM of it, though an idle one of the pool's own size is
// there; one that asks for too much is told so, and waits.
func TestAJobGetsTheSizeThatItsLabelsAskFor(t *testing.T) {
	t.Parallel()

	f := fleet.New(t, env, fleet.Options{})
	f.CreateCluster(f.NewCluster())
	f.Create(f.NewTemplate())

	pool := f.NewPool(4)
	pool.Spec.Scaling.Warm = &v1alpha1.Warm{Idle: 1}
	pool.Spec.SizeLabels = &v1alpha1.SizeLabels{MaxCPU: new(int32(8)), MaxMemory: new(resource.MustParse("8Gi"))}
	f.Create(pool)
	f.Start()

	eventuallyPool(f, "an idle machine", func(s v1alpha1.RunnerPoolStatus) bool { return s.ReadyReplicas == 1 })

	command, release := held(t)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux", "cpu=4", "memory=3Gi"}, Command: command})
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux", "cpu=64"}})
	eventuallyPool(f, "the job runs beside the idle machine", func(s v1alpha1.RunnerPoolStatus) bool {
		return s.BusyReplicas == 1 && s.ReadyReplicas == 2
	})

	var claims v1alpha1.MachineClaimList
	if err := f.Client.List(t.Context(), &claims); err != nil {
		t.Fatal(err)
	}

	seen := 0

	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Namespace != f.Namespace || claim.Spec.Size == nil {
			continue
		}

		seen++

		if r := claim.Status.VMRef.Resources; r.CPU != 4 || r.Memory.String() != "3Gi" {
			t.Errorf("quotas count %+v of it", r)
		}

		for _, vm := range f.PVE.Snapshot().VMs {
			wrong := vm.Config["cores"] != "4" || vm.Config["memory"] != "3072"
			if strconv.Itoa(vm.VMID) == claim.Status.VMRef.VMID && wrong {
				t.Errorf("the VM has %v; want 4 cores and 3072 MiB", vm.Config)
			}
		}
	}

	if seen != 1 {
		t.Errorf("%d machines were made of a size, want 1", seen)
	}

	f.Eventually("the job that asks for too much is told so", func() (bool, string) {
		var jobs v1alpha1.RunnerJobList
		if err := f.Client.List(t.Context(), &jobs); err != nil {
			return false, err.Error()
		}

		for i := range jobs.Items {
			for _, condition := range jobs.Items[i].Status.Conditions {
				if jobs.Items[i].Namespace == f.Namespace && condition.Reason == demand.ReasonSizeRefused {
					return true, ""
				}
			}
		}

		return false, "no job is refused"
	})
	release()
	f.EventuallyDone(1)
}
