// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/fixes"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// countCalls returns the number of calls to a hypervisor whose path matches the pattern.
func countCalls(s *pve.Server, method, pattern string) int {
	n := 0

	for _, c := range s.Calls() {
		if ok, err := path.Match(pattern, c.Path); err == nil && ok && c.Method == method {
			n++
		}
	}

	return n
}

// TestPermanentFaultFailsClaim checks that the operator stops retrying after the allowed number of attempts, and
// that the claim fails with a message.
func TestPermanentFaultFailsClaim(t *testing.T) {
	t.Parallel()

	const (
		clone = "/nodes/*/qemu/*/clone"
		start = "/nodes/*/qemu/*/status/start"
		tries = 2
	)

	cases := map[string]struct {
		fault  pve.Fault
		path   string
		reason string
		words  string
	}{
		"clone-refused": {
			pve.Fault{Kind: pve.FaultError, Path: clone, Status: http.StatusInternalServerError, Reason: "boom"},
			clone, "ProvisioningFailed", "boom",
		},
		"start-fails": {
			pve.Fault{Kind: pve.FaultTaskError, Path: start, Reason: "start failed: QEMU exited with code 1"},
			start, "StartFailed", "QEMU exited with code 1",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFastFleet(t, fleet.Options{Model: fleet.Model().WithNodes(1)})
			f.Runners.MaxAttempts = tries
			f.PVE.AddFault(tc.fault)

			claim := f.NewClaim("doomed")
			createAndStart(f, f.NewTemplate(), claim)

			message := f.EventuallyCondition(claim, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, tc.reason)

			f.Eventually("the claim failing", func() (bool, string) {
				if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil {
					return false, err.Error()
				}

				return claim.Status.Phase == v1alpha1.MachineClaimFailed, string(claim.Status.Phase)
			})

			message = meta.FindStatusCondition(claim.Status.Conditions, step.Ready).Message + message
			if !strings.Contains(message, "failed after 2 attempts") || !strings.Contains(message, tc.words) {
				t.Errorf("the condition of the claim does not have the cause: %s", message)
			}

			if n := countCalls(f.PVE, http.MethodPost, tc.path); n != tries {
				t.Errorf("%d calls, want %d", n, tries)
			}

			deleteObject(f, claim)
			f.EventuallyClean()
		})
	}
}

// TestPoolReportsMachineFailures checks that a pool whose machines all fail reports why, even though their claims
// are deleted.
func TestPoolReportsMachineFailures(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{Model: fleet.Model().WithNodes(1)})
	f.Runners.MaxAttempts = 1
	f.Populate(1)
	removeFault := f.PVE.AddFault(pve.Fault{
		Kind: pve.FaultTaskError, Path: "/nodes/*/qemu/*/status/start", Reason: "start failed: QEMU exited with code 1",
	})
	f.Start()

	pool := f.NewPool(1)
	f.EventuallyReady(pool)
	queueJobs(f, 1)

	checkContains(t, f.EventuallyCondition(pool, step.Ready, metav1.ConditionFalse, "MachinesFailing"), "QEMU exited with code 1")

	last := pool.Status.LastFailure
	if last == nil || last.Reason != "StartFailed" || last.Node != "pve1" || !strings.HasPrefix(last.Claim, pool.Name) {
		t.Errorf("last failure: %+v", last)
	}

	removeFault()
	f.EventuallyJobsDone(1)
	f.EventuallyReady(pool)
}

// TestFailedMachineIsKept checks that a failed machine is kept for inspection if its pool says so, one at a time:
// it runs, its runner is removed, and the deletion of its claim deletes it.
func TestFailedMachineIsKept(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{Guest: runIdleGuest}) // it boots, but its runner never starts
	pool := f.NewPool(3)
	pool.Spec.Lifecycle = &v1alpha1.Lifecycle{
		BootstrapTimeout: &metav1.Duration{Duration: time.Second},
		KeepFailed:       &v1alpha1.KeepFailed{Machines: 1, Time: &metav1.Duration{Duration: time.Hour}},
	}

	createAndStart(f, f.NewTemplate(), pool)
	f.EventuallyReady(f.NewTemplate())
	queueJobs(f, 1)
	f.EventuallyEvent("Kept")

	var kept v1alpha1.MachineClaim

	f.Eventually("one machine being kept, and another created and deleted", func() (bool, string) {
		n := 0

		for _, claim := range listClaims(f) {
			if claim.Status.KeptUntil != nil {
				kept = claim
				n++
			}
		}

		return n == 1 && f.CountClones() > 1, f.Describe()
	})

	ready := meta.FindStatusCondition(kept.Status.Conditions, step.Ready)
	if kept.Status.Phase != v1alpha1.MachineClaimFailed ||
		!strings.Contains(ready.Message, "qm terminal "+kept.Status.VMRef.VMID) {
		t.Errorf("%s: %+v", kept.Status.Phase, ready)
	}

	for _, runner := range f.GitHub.State().Runners {
		if runner.Name == kept.Status.BootstrapInfo.RunnerName {
			t.Error("the runner of the kept machine could still take a job")
		}
	}

	if !slices.ContainsFunc(listRunning(f), func(vm pve.VMState) bool { return strconv.Itoa(vm.VMID) == kept.Status.VMRef.VMID }) {
		t.Errorf("VM %s does not run", kept.Status.VMRef.VMID)
	}

	openKeptConsole(f, ready.Message)
	fixes.Kubectl(t, f.Env, ready.Message) // the command that deletes the machine sooner
	eventuallyDeleted(f, &kept)
	deleteObject(f, pool)

	// This API server runs without garbage collection.
	if err := f.Client.DeleteAllOf(t.Context(), &v1alpha1.MachineClaim{}, client.InNamespace(f.Namespace)); err != nil {
		t.Fatal(err)
	}

	f.EventuallyClean()
}

// consolePattern matches the commands in the message of a kept machine: its node, and twice the ID of its VM.
var consolePattern = regexp.MustCompile(`log in to node (\S+) and run: qm terminal (\d+) \(if it is off: qm start (\d+) first\)`)

// openKeptConsole does what the message of a kept machine says, after the machine was powered off.
func openKeptConsole(f *fleet.Fleet, message string) {
	f.T.Helper()

	match := consolePattern.FindStringSubmatch(message)
	if match == nil {
		f.T.Fatalf("the message has no commands: %s", message)
	}

	id, err := strconv.Atoi(match[3])
	if err != nil {
		f.T.Fatal(err)
	}

	f.PVE.PowerOff(id)

	root, machines := pvetest.LogIn(f.T, f.PVE), "/nodes/"+match[1]+"/qemu/"
	root.Do(http.MethodPost, machines+match[3]+"/status/start", nil)
	f.Eventually("the kept machine runs again", func() (bool, string) {
		return slices.ContainsFunc(listRunning(f), func(vm pve.VMState) bool { return vm.VMID == id }), f.Describe()
	})
	root.Do(http.MethodPost, machines+match[2]+"/termproxy", nil)
}
