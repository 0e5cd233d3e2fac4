// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestDeletingABusyClaimWaitsForItsJob checks that a deleted claim whose runner is busy is drained, so that its
// job ends first.
func TestDeletingABusyClaimWaitsForItsJob(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	claim := f.NewClaim("busy")
	createAndStart(f, f.NewTemplate(), f.NewPool(0), claim)
	f.EventuallyReady(claim)

	release := holdJobs(t, f, 1)
	deleteObject(f, claim)

	message := f.EventuallyCondition(claim, "Deregistered", metav1.ConditionFalse, "RunnerBusy")
	if claim.Status.Phase != v1alpha1.MachineClaimDraining || !strings.Contains(message, "runs a job") {
		t.Errorf("phase %s: %s", claim.Status.Phase, message)
	}

	release()
	f.EventuallyJobsDone(1)
	f.EventuallyClean()
}

// TestLimitsEndMachines checks that a machine ends when it reaches a limit of its lifecycle.
func TestLimitsEndMachines(t *testing.T) { //nolint:tparallel // its subtests share a fleet, one after the other
	t.Parallel()

	soon := &metav1.Duration{Duration: 500 * time.Millisecond}
	cases := map[string]struct {
		lifecycle v1alpha1.Lifecycle
		job       bool
		reason    string
		// condition has the reason, in addition to Ready.
		condition string
	}{
		"idle": {lifecycle: v1alpha1.Lifecycle{IdleTimeout: soon}, reason: "IdleTimeout", condition: "Finished"},
		"old": {
			lifecycle: v1alpha1.Lifecycle{MaxLifetime: &metav1.Duration{Duration: 3 * time.Second}}, reason: "MaxLifetime",
			condition: "Finished",
		},
		"too-busy": {
			lifecycle: v1alpha1.Lifecycle{JobTimeout: soon}, job: true, reason: "JobTimeout",
			condition: "Finished",
		},
		noRunner: {
			lifecycle: v1alpha1.Lifecycle{BootstrapTimeout: soon}, reason: "BootstrapTimeout",
			condition: v1alpha1.ConditionBootstrapped,
		},
	}

	f := newFastFleet(t, fleet.Options{Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
		if vm.Name == noRunner {
			run = func(vm pve.GuestVM) { <-vm.Context.Done() }
		}

		run(vm)
	}})
	f.Populate(0)
	f.Start()
	f.EventuallyReady(f.NewTemplate())

	t.Run("limits", func(t *testing.T) {
		for name, tc := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()

				f := f.ForSubtest(t)
				claim := f.NewClaim(name)
				claim.Spec.WorkloadConfig.Config.GitHub.Labels = []string{name}
				claim.Spec.Lifecycle = &tc.lifecycle
				claim.Finalizers = []string{"example.com/look"}

				if tc.job {
					f.GitHub.Queue(control.JobSpec{Labels: []string{name}, Duration: time.Hour})
				}

				f.Create(claim)
				f.EventuallyEvent(tc.reason + " MachineClaim/" + name + ":")
				waitForEnd(f, claim, tc.condition, tc.reason)
			})
		}
	})

	// GitHub keeps the registration of the busy runner although its machine is gone.
	f.Eventually("all machines and all runners except the busy one being deleted", func() (bool, string) {
		left := f.FindLeftovers()

		return len(left) == 0 || len(left) == 1 && strings.HasPrefix(left[0], "runner "), strings.Join(left, ", ")
	})
}

// noRunner is the name of a machine whose runner never starts.
const noRunner = "no-runner"

// waitForEnd waits until only the test's finalizer is left on the claim, checks the reason in its status and
// condition, and removes the finalizer.
func waitForEnd(f *fleet.Fleet, claim *v1alpha1.MachineClaim, condition, reason string) {
	f.T.Helper()

	finalizers := claim.Finalizers
	f.Eventually("the claim having only the finalizer of the test", func() (bool, string) {
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		return !claim.DeletionTimestamp.IsZero() && slices.Equal(claim.Finalizers, finalizers), strings.Join(claim.Finalizers, ", ")
	})

	if claim.Status.EndReason != reason {
		f.T.Errorf("the claim ended with reason %q, want %q", claim.Status.EndReason, reason)
	}

	got := meta.FindStatusCondition(claim.Status.Conditions, condition)
	if got == nil || got.Status != metav1.ConditionFalse || got.Reason != reason || got.Message == "" {
		f.T.Errorf("condition %s is %+v, want reason %s", condition, got, reason)
	}

	claim.Finalizers = nil
	if err := f.Client.Update(f.T.Context(), claim); err != nil {
		f.T.Fatal(err)
	}
}

// TestOrphansAreRemovedOnAllSides checks that VMs, cloud-init ISOs and runners without a claim are found and
// removed.
func TestOrphansAreRemovedOnAllSides(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{Guest: runIdleGuest}) // the runner never comes online
	claim := f.NewClaim("lost")
	createAndStart(f, f.NewTemplate(), f.NewPool(0), claim)
	f.EventuallyCondition(claim, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "")
	f.Stop()
	deleteClaimsWithoutOperator(f) // VM, cloud-init ISO and runner have no claim now
	checkContains(t, strings.Join(f.FindLeftovers(), ", "), "VM ", "cloud-init ISO ", "runner ")
	f.Start()
	f.EventuallyClean()
}

// TestTwoOperatorsShareAHypervisor checks that two operators on one hypervisor change neither each other's
// machines nor other VMs.
func TestTwoOperatorsShareAHypervisor(t *testing.T) {
	t.Parallel()

	one := newFastFleet(t, fleet.Options{})
	two := newFastFleet(t, fleet.Options{PVE: one.PVE, Clock: one.Clock})
	foreign := describeForeignVMs(one)

	one.Populate(5)
	one.Start()
	one.EventuallyReady(one.NewPool(0))

	// The machine of the second operator is idle during the test.
	keep := two.NewClaim("keep")
	createAndStart(two, two.NewTemplate(), keep)
	two.EventuallyReady(keep)

	queueJobs(one, 2)
	one.EventuallyJobsDone(2)
	one.Eventually("the machines of the first operator being deleted", func() (bool, string) {
		left := strings.Join(one.FindLeftovers(), ", ")

		return !strings.Contains(left, "VM ") && !strings.Contains(left, "claim"), left
	})

	two.EventuallyReady(keep)

	if got := describeForeignVMs(one); got != foreign {
		t.Errorf("foreign VMs changed to:\n%s\nfrom:\n%s", got, foreign)
	}

	deleteObject(two, keep)
	two.EventuallyClean()
}

// describeForeignVMs describes the VMs and templates that existed before the test.
func describeForeignVMs(f *fleet.Fleet) string {
	var out strings.Builder

	for _, vm := range f.PVE.Snapshot().VMs {
		if vm.Foreign || vm.Template {
			out.WriteString(vm.Name + " " + vm.Node + " " + vm.Status + " " + vm.Config["digest"] + vm.Config["tags"] + vm.Lock + "\n")
		}
	}

	return out.String()
}
