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

// ready starts a fleet with one claim whose runner is online.
func ready(t *testing.T, f *fleet.Fleet, claim *v1alpha1.MachineClaim) {
	t.Helper()

	f.Populate(0)
	f.Start()
	f.EventuallyReady(f.NewTemplate())
	f.Create(claim)
	f.EventuallyReady(claim)
}

// A claim whose runner works is drained: its job ends first.
func TestDeletingABusyClaimWaitsForItsJob(t *testing.T) {
	t.Parallel()

	f := fleet.New(t, env, fleet.Options{})
	claim := f.NewClaim("busy")
	ready(t, f, claim)

	command, release := held(t)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: command})
	f.GitHub.Eventually("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" })

	if err := f.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	message := f.EventuallyCondition(claim, "Deregistered", metav1.ConditionFalse, "RunnerBusy")
	if claim.Status.Phase != v1alpha1.MachineClaimDraining || !strings.Contains(message, "runs a job") {
		t.Errorf("phase %s: %s", claim.Status.Phase, message)
	}

	release()
	f.EventuallyDone(1)
	f.EventuallyClean()
}

// A machine ends when a limit of its lifecycle is reached.
func TestLimitsEndMachines(t *testing.T) { //nolint:tparallel // its subtests share a fleet, one after the other
	t.Parallel()

	soon := &metav1.Duration{Duration: 500 * time.Millisecond}
	cases := map[string]struct {
		lifecycle v1alpha1.Lifecycle
		job       bool
		reason    string
		// condition that has the reason, beside Ready.
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

	work := fleet.Guest(t)
	model := fleet.Model()
	model.Guest.Script = func(vm pve.GuestVM) {
		if vm.Name == noRunner {
			idle(vm)
		} else {
			work(vm)
		}
	}

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Populate(0)
	f.Start()
	f.EventuallyReady(f.NewTemplate())

	t.Run("limits", func(t *testing.T) {
		for name, tc := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()

				f := f.In(t)
				claim := f.NewClaim(name)
				claim.Spec.WorkloadConfig.Config.GitHub.Labels = []string{name}
				claim.Spec.Lifecycle = &tc.lifecycle
				claim.Finalizers = []string{"example.com/look"}

				if tc.job {
					f.GitHub.Queue(control.JobSpec{Labels: []string{name}, Duration: time.Hour})
				}

				f.Create(claim)
				f.EventuallyEvent(tc.reason + " MachineClaim/" + name + ":")
				endsFor(f, claim, tc.condition, tc.reason)
			})
		}
	})

	// The forge goes on to believe in the runner that is busy; its machine is gone all the same.
	f.Eventually("the machines being gone, and runners but for the busy one", func() (bool, string) {
		left := f.Leftovers()

		return len(left) == 0 || len(left) == 1 && strings.HasPrefix(left[0], "runner "), strings.Join(left, ", ")
	})
}

// noRunner is a machine that does nothing.
const noRunner = "no-runner"

// endsFor waits until the claim is done with but for the finalizer of who looks at it, and
// sees that the reason of its end is where people look for it. Then it lets it go.
func endsFor(f *fleet.Fleet, claim *v1alpha1.MachineClaim, condition, reason string) {
	f.T.Helper()

	look := claim.Finalizers
	f.Eventually("the claim being done with", func() (bool, string) {
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		return !claim.DeletionTimestamp.IsZero() && slices.Equal(claim.Finalizers, look), strings.Join(claim.Finalizers, ", ")
	})

	if claim.Status.EndReason != reason {
		f.T.Errorf("the claim ended for %s, want %s", claim.Status.EndReason, reason)
	}

	got := meta.FindStatusCondition(claim.Status.Conditions, condition)
	if got == nil || got.Status != metav1.ConditionFalse || got.Reason != reason || got.Message == "" {
		f.T.Errorf("%s is %+v, want the reason %s", condition, got, reason)
	}

	claim.Finalizers = nil
	if err := f.Client.Update(f.T.Context(), claim); err != nil {
		f.T.Fatal(err)
	}
}

// What belongs to no claim is found and removed on all three sides.
func TestOrphansAreRemovedOnAllSides(t *testing.T) {
	t.Parallel()

	model := fleet.Model()
	model.Guest.Script = func(vm pve.GuestVM) { <-vm.Context.Done() } // the runner never comes online

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Runners.OrphanInterval = 500 * time.Millisecond
	claim := f.NewClaim("lost")

	f.Populate(0)
	f.Start()
	f.EventuallyReady(f.NewTemplate())
	f.Create(claim)
	f.EventuallyCondition(claim, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "")
	f.Stop()

	// A person takes the finalizer off by force: VM, cloud-init ISO and runner have no claim now.
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
		t.Fatal(err)
	}

	claim.Finalizers = nil
	if err := f.Client.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	if err := f.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	left := strings.Join(f.Leftovers(), ", ")
	for _, side := range []string{"VM ", "cloud-init ISO ", "runner "} {
		if !strings.Contains(left, side) {
			t.Fatalf("no %s to be orphaned: %s", side, left)
		}
	}

	f.Start()
	f.EventuallyClean()
}

// Two operators on one hypervisor never touch each other's machines, nor anyone else's.
func TestTwoOperatorsShareAHypervisor(t *testing.T) {
	t.Parallel()

	one := fleet.New(t, env, fleet.Options{})
	two := fleet.New(t, env, fleet.Options{PVE: one.PVE})
	foreign := foreignVMs(one)

	for _, f := range []*fleet.Fleet{one, two} {
		f.Populate(5)
		f.Start()
		f.EventuallyReady(f.NewPool(0))
	}

	// The other's machines idle all the while.
	keep := two.NewClaim("keep")
	two.Create(keep)
	two.EventuallyReady(keep)

	one.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: 3})
	one.EventuallyDone(3)
	one.Eventually("one's machines being gone", func() (bool, string) {
		left := strings.Join(one.Leftovers(), ", ")

		return !strings.Contains(left, "VM ") && !strings.Contains(left, "claim"), left
	})

	two.EventuallyReady(keep)

	if got := foreignVMs(one); got != foreign {
		t.Errorf("machines of others have changed:\n%s\nwere\n%s", got, foreign)
	}

	if err := two.Client.Delete(t.Context(), keep); err != nil {
		t.Fatal(err)
	}

	two.EventuallyClean()
}

// foreignVMs describes the machines and templates that were there from the start.
func foreignVMs(f *fleet.Fleet) string {
	var out strings.Builder

	for _, vm := range f.PVE.Snapshot().VMs {
		if vm.Foreign || vm.Template {
			out.WriteString(vm.Name + " " + vm.Node + " " + vm.Status + " " + vm.Config["digest"] + vm.Config["tags"] + vm.Lock + "\n")
		}
	}

	return out.String()
}
