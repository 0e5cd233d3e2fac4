// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestNodeLostWhileCreatingMachine checks that a job runs on another node if its node is removed from the cluster
// while the machine is being created, at any stage.
func TestNodeLostWhileCreatingMachine(t *testing.T) {
	t.Parallel()

	const delay = 20 * time.Second

	// hasTask returns a check for a running task of this type for the first machine.
	hasTask := func(kind string) func(pve.State) bool {
		return func(s pve.State) bool {
			return len(s.CreatedVMs()) > 0 &&
				slices.ContainsFunc(s.Tasks, func(t pve.TaskState) bool { return t.Type == kind && t.Exit == "" })
		}
	}

	for name, tc := range map[string]struct {
		slow    func(*pve.Delays)
		reached func(pve.State) bool
	}{
		"cloned":  {slow: func(d *pve.Delays) { d.Clone = delay }, reached: hasTask("qmclone")},
		"started": {slow: func(d *pve.Delays) { d.Start = delay }, reached: hasTask("qmstart")},
		"running without runner": {
			reached: func(s pve.State) bool { return len(s.CreatedVMs()) > 0 && s.CreatedVMs()[0].Status == "running" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			model := fleet.Model().WithNodes(3) //nolint:mnd // the smallest cluster that keeps quorum without one node
			model.Outage = pve.Outage{}

			if tc.slow != nil {
				tc.slow(&model.Delays)
			}

			var lost atomic.Bool

			f := newFastFleet(t, fleet.Options{Model: model, Guest: func(vm pve.GuestVM, run func(pve.GuestVM)) {
				if !lost.Load() {
					run = func(vm pve.GuestVM) { <-vm.Context.Done() }
				}

				run(vm)
			}})
			f.Populate(2)
			f.Start()
			f.EventuallyReady(f.NewTemplate())
			queueJobs(f, 1)

			var node string

			f.Eventually("a machine that is "+name, func() (bool, string) {
				s := f.PVE.Snapshot()
				if !tc.reached(s) {
					return false, "" // no calls, so that the time of a task is not missed
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

// TestRunnerIsRemovedWithoutHypervisor checks that a restarted operator that cannot reach the hypervisor yet
// removes the runner of a deleted claim, because this needs only the template.
func TestRunnerIsRemovedWithoutHypervisor(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	claim := f.NewClaim("runs")
	createAndStart(f, f.NewTemplate(), claim)
	eventuallyRunnerOnline(f, claim)
	f.Stop()

	f.SetSecret("proxmox", "tokenSecret", "00000000-0000-0000-0000-00000000dead")
	deleteObject(f, claim)
	f.Start()
	f.EventuallyCondition(claim, v1alpha1.ConditionVMCleanedUp, metav1.ConditionFalse, "ClusterNotConnected")

	if left := f.GitHub.State().Runners; len(left) > 0 {
		t.Errorf("the operator is at the deletion of the VM, but runners are left: %v", left)
	}

	f.SetSecret("proxmox", "tokenSecret", pve.DefaultSecret)
	f.EventuallyClean()
}

// eventuallyRunnerOnline waits until the claim, the only one, is ready and has its runner. Before that, the
// operator may issue its credential again, with another runner of the same name.
func eventuallyRunnerOnline(f *fleet.Fleet, claim *v1alpha1.MachineClaim) {
	f.T.Helper()
	f.Eventually("the runner being online", func() (bool, string) {
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
			return false, err.Error()
		}

		up := claim.Status.Phase == v1alpha1.MachineClaimReady && claim.Status.BootstrapInfo.RunnerID != ""

		return up && len(f.GitHub.State().Runners) == 1, fmt.Sprint(claim.Status.Phase, f.GitHub.State().Runners)
	})
}
