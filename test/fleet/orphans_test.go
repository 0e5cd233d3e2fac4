// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// loseClaims takes away all claims while nobody looks, as an etcd that is restored from before
// them does.
func loseClaims(f *fleet.Fleet) {
	f.T.Helper()

	var claims v1alpha1.MachineClaimList
	if err := f.Client.List(f.T.Context(), &claims, client.InNamespace(f.Namespace)); err != nil {
		f.T.Fatal(err)
	}

	for i := range claims.Items {
		claim := &claims.Items[i]

		err := f.Client.Patch(f.T.Context(), claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		if err != nil {
			f.T.Fatal(err)
		}

		if err := client.IgnoreNotFound(f.Client.Delete(f.T.Context(), claim)); err != nil {
			f.T.Fatal(err)
		}
	}
}

// So many machines without claims that claims must have been lost are held, and told of, until
// a person lets them go.
func TestManyOrphansAreHeld(t *testing.T) {
	t.Parallel()

	const machines = 5

	model := fleet.Model()
	model.Guest.Script = func(vm pve.GuestVM) { <-vm.Context.Done() } // the runner never comes online

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Runners.OrphanInterval = 200 * time.Millisecond
	f.Runners.OrphanAge = 0
	f.Populate(0)
	f.Start()
	f.EventuallyReady(f.NewTemplate())

	for i := range machines {
		f.Create(f.NewClaim(fmt.Sprint("lost-", i)))
	}

	for i := range machines {
		f.EventuallyCondition(f.NewClaim(fmt.Sprint("lost-", i)), v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "")
	}

	f.Stop()
	loseClaims(f)
	f.Start()

	cluster := &v1alpha1.HypervisorCluster{}
	cluster.Name = f.Cluster
	f.EventuallyEvent("OrphansHeld")

	if n := len(f.PVE.Snapshot().Made()); n != machines {
		t.Fatalf("%d machines are left, want all %d", n, machines)
	}

	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(cluster), cluster); err != nil {
		t.Fatal(err)
	}

	before := cluster.DeepCopy()
	cluster.Annotations = map[string]string{v1alpha1.AnnotationRemoveOrphans: "true"}

	if err := f.Client.Patch(t.Context(), cluster, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}

	f.EventuallyClean()
}

// A machine whose claim was lost is left until its job is over.
func TestABusyOrphanIsLeft(t *testing.T) {
	t.Parallel()

	f := fleet.New(t, env, fleet.Options{})
	f.Runners.OrphanInterval = 100 * time.Millisecond
	f.Runners.OrphanAge = 0
	f.Populate(1)
	f.Start()
	f.EventuallyReady(f.NewPool(1))

	command, release := held(t)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Command: command})
	f.GitHub.Eventually("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" })
	f.Stop()
	loseClaims(f)

	// A pool that runs would make another machine for the job.
	pool := f.NewPool(1)
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil {
		t.Fatal(err)
	}

	before := pool.DeepCopy()
	pool.Spec.Paused = true

	if err := f.Client.Patch(t.Context(), pool, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}

	listed := f.GitHub.State().Requests["actions/list-self-hosted-runners-for-repo"]

	f.Start()
	f.GitHub.Eventually("the sweep asks for its runner", func(s control.State) bool {
		return s.Requests["actions/list-self-hosted-runners-for-repo"] > listed+1
	})

	if n := len(f.PVE.Snapshot().Made()); n != 1 {
		t.Fatalf("%d machines, want the busy one", n)
	}

	release()
	f.GitHub.Eventually("the job has ended well", func(s control.State) bool { return s.Jobs[0].Conclusion == "success" })
	f.EventuallyClean()
}
