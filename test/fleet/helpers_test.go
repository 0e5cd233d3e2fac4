// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// clockSpeed is the factor by which the clock of fast fleets is faster than the real clock.
const clockSpeed = 5

// newFastFleet returns a fleet with a fast clock, so that the operator's waits of seconds take a fraction of a
// second. The timeouts of HTTP clients use the real clock.
func newFastFleet(t *testing.T, opts fleet.Options) *fleet.Fleet {
	t.Helper()

	return newFastFleetIn(t, env, opts)
}

// newFastFleetIn is newFastFleet on another API server.
func newFastFleetIn(t *testing.T, env *kube.Env, opts fleet.Options) *fleet.Fleet {
	t.Helper()

	if opts.Clock == nil {
		opts.Clock = conformance.FastClock(t, clockSpeed)
	}

	f := fleet.New(t, env, opts)
	f.Runners.ClusterInterval, f.Runners.TemplateInterval = 5*time.Second, 10*time.Second
	f.Runners.OrphanInterval, f.Runners.OrphanAge = 5*time.Second, 2*time.Second
	f.Runners.TaskInterval, f.Runners.ListInterval = 100*time.Millisecond, 400*time.Millisecond

	return f
}

// createAndStart creates the fleet's cluster and the objects, and starts the operator.
func createAndStart(f *fleet.Fleet, objects ...client.Object) {
	f.T.Helper()
	f.CreateCluster(f.NewCluster())

	for _, obj := range objects {
		f.Create(obj)
	}

	f.Start()
}

// runIdleGuest is a guest that does nothing until it is powered off.
func runIdleGuest(vm pve.GuestVM, _ func(pve.GuestVM)) { <-vm.Context.Done() }

// updateObject updates an object, and retries on conflicts with its controller.
func updateObject(f *fleet.Fleet, obj client.Object, apply func()) {
	f.T.Helper()

	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}

		apply()

		return f.Client.Update(f.T.Context(), obj)
	})
	if err != nil {
		f.T.Fatal(err)
	}
}

// deleteObject deletes an object.
func deleteObject(f *fleet.Fleet, obj client.Object) {
	f.T.Helper()

	if err := client.IgnoreNotFound(f.Client.Delete(f.T.Context(), obj)); err != nil {
		f.T.Fatal(err)
	}
}

// listClaims returns the claims of the fleet.
func listClaims(f *fleet.Fleet) []v1alpha1.MachineClaim {
	f.T.Helper()

	var list v1alpha1.MachineClaimList
	if err := f.Client.List(f.T.Context(), &list, client.InNamespace(f.Namespace)); err != nil {
		f.T.Error(err) // a machine may call this from another goroutine
	}

	return list.Items
}

// queueJobs queues short jobs.
func queueJobs(f *fleet.Fleet, jobs int) {
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: jobs, Duration: 50 * time.Millisecond})
}

// newHeldCommand returns the command of a job that runs until release is called.
func newHeldCommand(t *testing.T) (command string, release func()) {
	t.Helper()

	file := filepath.Join(t.TempDir(), "over")

	return "until test -e '" + file + "'; do sleep 0.1; done", func() {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Error(err)
		}
	}
}

// holdJobs queues jobs that run until release is called, and waits until they run.
func holdJobs(t *testing.T, f *fleet.Fleet, jobs int) (release func()) {
	t.Helper()

	command, release := newHeldCommand(t)
	before := len(f.GitHub.State().Jobs)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: command, Count: jobs})
	f.GitHub.WaitUntil("the jobs are running", func(s control.State) bool {
		for _, job := range s.Jobs[before:] {
			if job.Status != "in_progress" {
				return false
			}
		}

		return len(s.Jobs) == before+jobs
	})

	return release
}

// eventuallyDeleted waits until the object does not exist.
func eventuallyDeleted(f *fleet.Fleet, obj client.Object) {
	f.T.Helper()
	f.Eventually(obj.GetName()+" being deleted", func() (bool, string) {
		err := f.Client.Get(f.T.Context(), client.ObjectKeyFromObject(obj), obj)

		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}

// listRunning returns the machines that run.
func listRunning(f *fleet.Fleet) []pve.VMState {
	var out []pve.VMState

	for _, server := range f.Servers() {
		for _, vm := range server.Snapshot().CreatedVMs() {
			if vm.Status == "running" {
				out = append(out, vm)
			}
		}
	}

	return out
}

// eventuallyRunning waits until n machines run.
func eventuallyRunning(f *fleet.Fleet, n int) {
	f.T.Helper()
	f.Eventually(fmt.Sprintf("%d machines running", n), func() (bool, string) { return len(listRunning(f)) == n, f.Describe() })
}

// checkContains reports an error for each part that the text does not contain.
func checkContains(t testing.TB, text string, parts ...string) {
	t.Helper()

	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not contain %q", text, part)
		}
	}
}
