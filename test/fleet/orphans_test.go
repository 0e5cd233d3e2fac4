// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// deleteClaimsWithoutOperator deletes all claims while no operator runs, as a restored old backup of etcd does.
func deleteClaimsWithoutOperator(f *fleet.Fleet) {
	f.T.Helper()

	for _, claim := range listClaims(f) {
		updateObject(f, &claim, func() { claim.Finalizers = nil })
		deleteObject(f, &claim)
	}
}

// TestManyOrphansAreHeld checks that the operator keeps and reports machines without claims if there are so many
// that the claims were probably lost, until a person allows their removal.
func TestManyOrphansAreHeld(t *testing.T) {
	t.Parallel()

	const machines = 5

	f := newFastFleet(t, fleet.Options{Guest: runIdleGuest}) // the runner never comes online
	f.Runners.OrphanInterval, f.Runners.OrphanAge = time.Second, 0

	for i := range machines {
		f.Create(f.NewClaim(fmt.Sprint("lost-", i)))
	}

	createAndStart(f, f.NewTemplate(), f.NewPool(0))
	eventuallyRunning(f, machines)
	f.Stop()
	deleteClaimsWithoutOperator(f)
	f.Start()
	f.EventuallyEvent("OrphansHeld")

	if n := len(f.PVE.Snapshot().CreatedVMs()); n != machines {
		t.Fatalf("%d machines are left, want all %d", n, machines)
	}

	cluster := f.NewCluster()
	updateObject(f, cluster, func() { cluster.Annotations = map[string]string{v1alpha1.AnnotationRemoveOrphans: "true"} })
	f.EventuallyClean()
}

// TestBusyOrphanIsKept checks that a machine whose claim was lost is kept until its job has ended.
func TestBusyOrphanIsKept(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Runners.OrphanInterval, f.Runners.OrphanAge = time.Second, 0
	f.Populate(1)
	f.Start()
	f.EventuallyReady(f.NewPool(1))

	release := holdJobs(t, f, 1)

	f.Stop()
	deleteClaimsWithoutOperator(f)

	// The pool would create another machine for the job.
	pool := f.NewPool(1)
	updateObject(f, pool, func() { pool.Spec.Paused = true })

	var logged capture.Buffer

	f.Log = &logged
	f.Start()
	f.Eventually("the operator logging that it keeps the orphan", func() (bool, string) {
		return strings.Contains(logged.String(), "orphan is kept for now"), logged.String()
	})

	if n := len(f.PVE.Snapshot().CreatedVMs()); n != 1 {
		t.Fatalf("%d machines, want the busy one only", n)
	}

	release()
	f.GitHub.WaitUntil("the job succeeds", func(s control.State) bool { return s.Jobs[0].Conclusion == "success" })
	f.EventuallyClean()
}
