// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/workload"
)

// TestNodesThatCannotBeUsed checks that jobs run on the other nodes if only one node has the storage for cloud-init
// ISOs, and if a node of spec.nodes leaves the cluster permanently while its machine runs.
func TestNodesThatCannotBeUsed(t *testing.T) {
	t.Parallel()

	t.Run("one storage for ISOs", func(t *testing.T) {
		t.Parallel()

		model := fleet.Model()
		model.Storages[0].Nodes = []string{"pve2"}
		f := newFastFleet(t, fleet.Options{Model: model})
		f.Populate(3)
		f.Start()
		queueJobs(f, 3)
		f.EventuallyJobsDone(3)
		checkContains(t, f.EventuallyCondition(f.NewCluster(), "Connected", metav1.ConditionTrue, ""), "node pve1 is not used", "local")
		f.EventuallyClean()
	})

	t.Run("a node leaves", func(t *testing.T) {
		t.Parallel()

		model := fleet.Model().WithNodes(3) //nolint:mnd // the smallest cluster that keeps quorum without one node
		model.Outage = pve.Outage{}
		f := newFastFleet(t, fleet.Options{Model: model})
		cluster := f.NewCluster()
		cluster.Spec.Nodes = []string{"pve1", "pve2", "pve3"}
		f.CreateCluster(cluster)
		f.Create(f.NewTemplate())
		f.Create(f.NewPool(3))
		f.Start()
		f.EventuallyReady(f.NewPool(3))
		holdJobs(t, f, 1)

		node := f.PVE.Snapshot().CreatedVMs()[0].Node
		f.PVE.AddFault(pve.Fault{Kind: pve.FaultNodeLost, Node: node})
		queueJobs(f, 1)
		f.EventuallyJobsDone(1)
		f.Eventually("the warning", func() (bool, string) {
			message := f.EventuallyCondition(cluster, "Connected", metav1.ConditionTrue, "")

			return strings.Contains(message, "no node "+node), message
		})
		f.EventuallyClean()
	})
}

// TestRepositoryIsRenamed checks that jobs of a repository that is renamed while they wait run, and that the pool
// says what to change.
func TestRepositoryIsRenamed(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.CreateCluster(f.NewCluster())
	f.Create(f.NewTemplate())

	pool := f.NewPool(2)
	pool.Spec.Demand = newPolling(2 * time.Second)
	f.Create(pool)
	queueJobs(f, 1)

	if err := f.GitHub.Rename("octo-org/octo-repo", "octo-org/renamed"); err != nil {
		t.Fatal(err)
	}

	f.Start()
	f.GitHub.Queue(control.JobSpec{Repo: "octo-org/renamed", Labels: []string{"LINUX"}, Name: "بناء \u202eالاختبار", Duration: time.Millisecond})
	checkContains(t, f.EventuallyCondition(pool, "DemandSourcesReady", metav1.ConditionFalse, workload.ReasonMoved), "octo-org/renamed")
	f.EventuallyJobsDone(2)
	f.EventuallyClean()
}
