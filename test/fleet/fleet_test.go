// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // each fleet hands its manager a logger of its own

	kube.Main(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
}

func TestClaimRunsOnceAndIsGone(t *testing.T) {
	t.Parallel()

	f := fleet.New(t, env, fleet.Options{})
	f.Populate(0) // the pool takes no job
	f.Start()
	f.EventuallyReady(f.NewCluster())
	f.EventuallyReady(f.NewTemplate())
	f.Create(f.NewClaim("solo"))
	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}})
	f.EventuallyDone(1)
	f.EventuallyClean()
}

func TestQueuedJobsGetMachines(t *testing.T) {
	t.Parallel()

	f := fleet.New(t, env, fleet.Options{})
	f.Populate(10)
	f.Start()
	f.EventuallyReady(f.NewPool(0))
	f.GitHub.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}, Count: 20})
	f.EventuallyDone(20)
	f.EventuallyClean()

	if made := f.VMsMade(); made != 20 {
		t.Errorf("%d VMs were made for 20 jobs", made)
	}
}
