// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestAllowedNamespaces checks that templates, and claims that were created before, comply with a cluster's
// allowedNamespaces.
func TestAllowedNamespaces(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	cluster := f.NewCluster()
	cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{"others"}}}

	template, claim := f.NewTemplate(), f.NewClaim("one")
	f.CreateCluster(cluster)
	f.Create(template)
	f.Create(claim)
	f.Start()
	f.EventuallyCondition(template, "Ready", metav1.ConditionFalse, "NamespaceNotAllowed")
	f.EventuallyCondition(claim, "Ready", metav1.ConditionFalse, "TemplateNotReady")

	// Every namespace has its name as a label (Kubernetes, "Automatic labelling").
	updateObject(f, cluster, func() {
		cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{
			Selector:  &v1alpha1.NamespaceSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": f.Namespace}},
			Templates: []string{"another"},
		}}
	})
	f.EventuallyCondition(template, "Ready", metav1.ConditionFalse, "TemplateNotAllowed")

	if made := f.CountClones(); made > 0 {
		t.Fatalf("%d VMs were created, want 0", made)
	}
}

// TestForgedStatusPlacesNoMachine checks that the placement of a machine is validated before its creation, so that
// a forged status places no machine on a hypervisor that its namespace may not use.
func TestForgedStatusPlacesNoMachine(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.CreateCluster(f.NewCluster())
	f.Create(f.NewTemplate())

	closed := f.NewSite("closed", fleet.Model(), func(c *v1alpha1.HypervisorCluster) {
		c.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{"others"}}}
	})

	f.Start()
	f.EventuallyReady(closed.Cluster)
	f.EventuallyReady(f.NewTemplate())
	f.Stop()

	forged := f.NewClaim("forged")
	f.Create(forged)

	forged.Status.VMRef = &v1alpha1.VMReference{
		HypervisorCluster: closed.Cluster.Name, VMID: "10001", Node: fleet.Model().Nodes[0].Name, OperatorUID: f.OperatorUID,
	}
	forged.Status.NetworkInfo, forged.Status.BootstrapInfo = &v1alpha1.NetworkInfo{}, &v1alpha1.BootstrapInfo{RunnerName: "forged"}

	if err := f.Client.Status().Update(t.Context(), forged); err != nil {
		t.Fatal(err)
	}

	f.Start()
	f.EventuallyCondition(forged, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, "NamespaceNotAllowed")

	if made := closed.PVE.Snapshot().CreatedVMs(); len(made) > 0 {
		t.Errorf("VMs were created on a hypervisor that the namespace may not use: %v", made)
	}
}

// TestTemplatesThatChangeAfterPlacing checks that the template is validated again when the machine is created, and
// that a machine gets only the resources that were counted when it was placed.
func TestTemplatesThatChangeAfterPlacing(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		change func(*v1alpha1.HypervisorMachineTemplateSpec)
		reason string
	}{
		"another network": {func(s *v1alpha1.HypervisorMachineTemplateSpec) {
			s.Network = &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeDHCP, VLAN: new(int32(7))}
		}, "VLANNotAllowed"},
		"more cores": {func(s *v1alpha1.HypervisorMachineTemplateSpec) { s.Resources.CPU = 4 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFastFleet(t, fleet.Options{})
			cluster := f.NewCluster()
			cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{
				Names: []string{f.Namespace}, VLANs: []v1alpha1.VLANRange{{Min: 100, Max: 109}}, Quota: &v1alpha1.NamespaceQuota{CPU: new(int32(2))},
			}}
			template, claim := f.NewTemplate(), f.NewClaim("one")

			f.CreateCluster(cluster)
			f.Create(template)
			f.Start()
			f.EventuallyReady(template)

			removeFault := f.PVE.AddFault(pve.Fault{Kind: pve.FaultError, Status: 500, Path: "/nodes/*/qemu/*/clone"})
			f.Create(claim)
			f.Eventually("the machine being placed but not created", func() (bool, string) {
				err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim)

				return err == nil && claim.Status.VMRef != nil, step.NotReadyMessage(claim)
			})
			updateObject(f, template, func() { tt.change(&template.Spec) })
			f.Eventually("the template being reconciled", func() (bool, string) {
				err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(template), template)

				return err == nil && template.Status.ObservedGeneration == template.Generation, fmt.Sprint(err)
			})
			removeFault()

			if tt.reason != "" {
				f.EventuallyCondition(claim, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, tt.reason)

				if made := f.CountClones(); made > 0 {
					t.Errorf("%d VMs were created, want 0", made)
				}

				return
			}

			f.EventuallyCondition(claim, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "")

			for _, vm := range f.PVE.Snapshot().CreatedVMs() {
				if vm.Config["cores"] != "2" {
					t.Errorf("the machine has %s cores, want the 2 that were counted", vm.Config["cores"])
				}
			}
		})
	}
}

// TestQuotasOfNamespaces checks that a namespace has no more machines than its quota, and gets the next machine
// when one is deleted.
func TestQuotasOfNamespaces(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	cluster := f.NewCluster()
	cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{
		Names: []string{f.Namespace}, Quota: &v1alpha1.NamespaceQuota{CPU: new(int32(5))}, // each machine has two
	}}

	f.CreateCluster(cluster)
	f.Create(f.NewTemplate())

	for _, name := range []string{"a", "b", "c", "d"} {
		f.Create(f.NewClaim(name))
	}

	f.Start()

	placed := func() (held, waiting []*v1alpha1.MachineClaim) {
		for _, claim := range listClaims(f) {
			switch {
			case claim.Status.VMRef != nil:
				held = append(held, &claim)
			case strings.Contains(step.NotReadyMessage(&claim), "is 5 cores"):
				waiting = append(waiting, &claim)
			}
		}

		return held, waiting
	}

	f.Eventually("two machines being placed and two waiting", func() (bool, string) {
		held, waiting := placed()

		return len(held) == 2 && len(waiting) == 2, fmt.Sprintf("%d placed, %d wait", len(held), len(waiting))
	})

	held, _ := placed()
	deleteObject(f, held[0])
	f.Eventually("another machine being placed", func() (bool, string) {
		held, waiting := placed()
		if len(held) > 2 {
			t.Fatalf("%d machines are placed, want at most 2", len(held))
		}

		return len(held) == 2 && len(waiting) == 1, fmt.Sprintf("%d placed, %d wait", len(held), len(waiting))
	})
}

// TestForgedStatusRemovesNoRunner checks that a forged status with another claim's runner, or with a job that has
// the runner's name, does not make the operator remove this runner.
func TestForgedStatusRemovesNoRunner(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	theirs := f.NewClaim("theirs")
	createAndStart(f, f.NewTemplate(), theirs)
	eventuallyRunnerOnline(f, theirs)

	// The operator does not run while the status is written, so that it has no earlier status.
	f.Stop()

	job := &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "forged"},
		Spec: v1alpha1.RunnerJobSpec{
			Platform: v1alpha1.WorkloadGeneric, ID: theirs.Status.BootstrapInfo.RunnerName, Name: "forged", Labels: []string{"linux"},
			State: v1alpha1.JobQueued, Queue: "nightly",
		},
	}
	f.Create(job)

	forged := map[string]*v1alpha1.MachineClaim{"runner": f.NewClaim("forged"), "job": f.NewClaim("forged-job")}
	for what, claim := range forged {
		claim.Finalizers = []string{v1alpha1.FinalizerVMCleanup}
		f.Create(claim)

		claim.Status.BootstrapInfo = theirs.Status.BootstrapInfo.DeepCopy()

		if what == "job" {
			claim.Status.BootstrapInfo.BoundJob = job.Name
		}

		if err := f.Client.Status().Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}

		deleteObject(f, claim)
	}

	f.Start()

	for _, claim := range forged {
		eventuallyDeleted(f, claim)
	}

	if left := f.GitHub.State().Runners; len(left) != 1 || strconv.FormatInt(left[0].ID, 10) != theirs.Status.BootstrapInfo.RunnerID {
		t.Errorf("runners: %v, want only the runner of the other claim", left)
	}
}
