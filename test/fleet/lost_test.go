// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// A node is removed from the cluster for good while a machine for a job is aWhile made on it: the
// job is done by a machine elsewhere, however far that one was.
func TestNodeLostUnderHalfMadeMachine(t *testing.T) {
	t.Parallel()

	const aWhile = 10 * time.Second

	// at tells whether a task of a kind runs for the first machine.
	at := func(kind string) func(pve.State) bool {
		return func(s pve.State) bool {
			return len(s.CreatedVMs()) > 0 &&
				slices.ContainsFunc(s.Tasks, func(t pve.TaskState) bool { return t.Type == kind && t.Exit == "" })
		}
	}

	for name, tc := range map[string]struct {
		slow    func(*pve.Delays)
		reached func(pve.State) bool
	}{
		"cloned":  {slow: func(d *pve.Delays) { d.Clone = aWhile }, reached: at("qmclone")},
		"started": {slow: func(d *pve.Delays) { d.Start = aWhile }, reached: at("qmstart")},
		"running without a runner": {
			reached: func(s pve.State) bool { return len(s.CreatedVMs()) > 0 && s.CreatedVMs()[0].Status == "running" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			model := fleet.Model().WithNodes(3) //nolint:mnd // the fewest of which one can be lost
			model.Outage = pve.Outage{}

			if tc.slow != nil {
				tc.slow(&model.Delays)
			}

			var lost atomic.Bool

			f := quick(t, fleet.Options{Model: model, Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
				if !lost.Load() {
					run = func(vm pve.GuestVM) { <-vm.Context.Done() }
				}

				run(vm)
			}})
			f.Populate(2)
			f.Start()
			f.EventuallyReady(f.NewTemplate())
			queue(f, 1)

			var node string

			f.Eventually("a machine that is "+name, func() (bool, string) {
				s := f.PVE.Snapshot()
				if !tc.reached(s) {
					return false, f.Describe()
				}

				node = s.CreatedVMs()[0].Node

				return true, ""
			})
			lost.Store(true)
			f.PVE.AddFault(pve.Fault{Kind: pve.FaultNodeLost, Node: node})

			f.EventuallyJobsDone(1)
			f.EventuallyClean()
		})
	}
}

// An operator that is started anew, and has not reached the hypervisor yet, removes the runner of a
// claim that was deleted meanwhile: what that needs is the template alone.
func TestARunnerIsRemovedBeforeItsHypervisorAnswers(t *testing.T) {
	t.Parallel()

	f := quick(t, fleet.Options{})
	claim := f.NewClaim("runs")
	begin(f, f.NewTemplate(), claim)
	eventuallyAtWork(f, claim)
	f.Stop()

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: f.Namespace, Name: f.NewCluster().Spec.Credentials.TokenID.SecretKeyRef.Name,
	}}
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}

	remove(f, secret)
	remove(f, claim)
	f.Start()
	f.EventuallyCondition(claim, v1alpha1.ConditionVMCleanedUp, metav1.ConditionFalse, "ClusterNotConnected")

	if left := f.GitHub.State().Runners; len(left) > 0 {
		t.Errorf("the step of the machine has come, and the runner is left: %v", left)
	}

	secret.ResourceVersion, secret.UID = "", ""
	f.Create(secret)
	f.EventuallyClean()
}

// eventuallyAtWork waits until the claim, which is alone, has its runner. Until it is at work, its
// credential may be made anew, with another runner of its name.
func eventuallyAtWork(f *fleet.Fleet, claim *v1alpha1.MachineClaim) {
	f.T.Helper()
	f.Eventually("the runner is there", func() (bool, string) {
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		up := claim.Status.Phase == v1alpha1.MachineClaimReady && claim.Status.BootstrapInfo.RunnerID != ""

		return up && len(f.GitHub.State().Runners) == 1, fmt.Sprint(claim.Status.Phase, f.GitHub.State().Runners)
	})
}
