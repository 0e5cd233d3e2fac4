// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestJobsWaitForADevice checks that a job that requests a GPU by the label of its pool runs in a machine with the only
// GPU. The claim of a second job waits, with a condition that names the device, until the first machine is deleted.
func TestJobsWaitForADevice(t *testing.T) {
	t.Parallel()

	model := fleet.Model()
	model.Nodes = slices.Clone(model.Nodes)
	model.Nodes[1].PCI = []pve.PCIDevice{{Address: "0000:01:00.0", ID: "10de:2235", IOMMUGroup: 14}}
	model.PCIMappings = []pve.PCIMapping{{ID: "gpu", Map: []string{"node=pve2,path=0000:01:00.0,id=10de:2235,iommugroup=14"}}}
	model.ACL = slices.Clone(model.ACL)

	for _, principal := range []string{pve.DefaultUser, pve.DefaultTokenID} {
		model.ACL = append(model.ACL, pve.ACL{Path: "/mapping/pci/gpu", Principal: principal, Role: "PVEMappingUser"})
	}

	f := newFastFleet(t, fleet.Options{Model: model})
	template, pool := f.NewTemplate(), f.NewPool(2)
	template.Spec.Resources.Devices = []v1alpha1.MachineDevice{{Name: "gpu", Type: v1alpha1.DeviceGPU}}
	createAndStart(f, template, pool)
	f.EventuallyReady(pool)

	release := holdJobs(t, f, 1)
	if running := listRunning(f); len(running) != 1 || running[0].Node != "pve2" || !slices.Equal(running[0].Devices, []string{"0000:01:00.0"}) {
		t.Errorf("want one machine with the GPU of pve2, got %+v", running)
	}

	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Duration: 50 * time.Millisecond})
	f.Eventually("a claim waiting for the device", func() (bool, string) {
		var claims v1alpha1.MachineClaimList
		if err := f.Client.List(t.Context(), &claims); err != nil {
			return false, err.Error()
		}

		for i := range claims.Items {
			placed := meta.FindStatusCondition(claims.Items[i].Status.Conditions, v1alpha1.ConditionPlaced)
			if placed != nil && placed.Reason == "NoCapacity" && strings.Contains(placed.Message, "pve2 has 0 of 1 devices gpu free") {
				return true, ""
			}
		}

		return false, "no claim has the condition"
	})
	release()
	f.EventuallyJobsDone(2)
	f.EventuallyClean()
}
