// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestFinishedMachineIsNotRecreated checks that a machine that ran its job before the operator got the response of
// the start call is not recreated when it is gone, because its credential is valid for one job only.
func TestFinishedMachineIsNotRecreated(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Populate(1)

	respond := make(chan struct{})
	removeHook := f.PVE.OnCall(func(call pve.Call) {
		if call.Phase == pve.PhaseAfter && strings.HasSuffix(call.Path, "/status/start") {
			<-respond
		}
	})
	t.Cleanup(removeHook)

	f.Start()
	f.EventuallyReady(f.NewPool(1))

	holdJobs(t, f, 1)
	f.Eventually("the operator recording that the job runs", func() (bool, string) {
		var jobs v1alpha1.RunnerJobList
		if err := f.Client.List(t.Context(), &jobs, client.InNamespace(f.Namespace)); err != nil {
			return false, err.Error()
		}

		return len(jobs.Items) == 1 && jobs.Items[0].Spec.State == v1alpha1.JobRunning, "the job is not recorded as running"
	})

	f.Stop()
	close(respond) // the operator that made the call has stopped

	for _, vm := range f.PVE.Snapshot().CreatedVMs() {
		f.PVE.DeleteVM(vm.VMID)
	}

	f.Start()
	f.EventuallyClean()

	if n := f.CountClones(); n != 1 {
		t.Errorf("%d machines were created, want 1", n)
	}
}

// TestProxmoxRebuilt checks that a reinstalled Proxmox VE at the same address is not trusted: the operator waits,
// and reports which fingerprint to set. After that, the machines of the old server count as gone, and jobs run on
// the new server.
func TestProxmoxRebuilt(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	cluster := f.NewCluster()
	f.Populate(2)
	f.Start()
	f.EventuallyReady(f.NewPool(2))

	holdJobs(t, f, 1)

	if err := f.PVE.Close(); err != nil {
		t.Fatal(err)
	}

	model := fleet.Model()
	model.Guest.Script = f.Guest()
	f.PVE = pvetest.Listen(t, model, pve.ListenOptions{Address: strings.TrimPrefix(f.PVE.URL(), "https://")}, pve.WithClock(f.Clock))

	checkContains(t, f.EventuallyCondition(cluster, step.Ready, metav1.ConditionFalse, "CertificateUntrusted"),
		"set tls.fingerprint to "+f.PVE.Fingerprint())

	if len(listClaims(f)) == 0 {
		t.Error("the claim was deleted while the state of its machine was unknown")
	}

	updateObject(f, cluster, func() { cluster.Spec.TLS.Fingerprint = f.PVE.Fingerprint() })
	f.EventuallyReady(cluster)
	queueJobs(f, 1)
	f.GitHub.WaitUntil("the next job succeeds", func(s control.State) bool { return s.Jobs[1].Conclusion == "success" })
	f.EventuallyClean()
}

// TestPoolMovedToAnotherCluster checks that a pool whose template is moved to another cluster creates its next
// machines there, and that existing machines run to their end.
func TestPoolMovedToAnotherCluster(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	f.Populate(2)

	other := f.NewSite("other", fleet.Model())

	f.Start()
	f.EventuallyReady(f.NewPool(2))
	f.EventuallyReady(other.Template)

	release := holdJobs(t, f, 1)
	template := f.NewTemplate()
	updateObject(f, template, func() { template.Spec.HypervisorClusterRef.Name = other.Cluster.Name })
	f.Eventually("the template being ready on the other cluster", func() (bool, string) {
		if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(template), template); err != nil {
			return false, err.Error()
		}

		return step.IsReady(template) && template.Status.ObservedGeneration == template.Generation, step.NotReadyMessage(template)
	})

	releaseNext := holdJobs(t, f, 1)

	for name, server := range map[string]*pve.Server{"old": f.PVE, "new": other.PVE} {
		if n := len(server.Snapshot().CreatedVMs()); n != 1 {
			t.Errorf("the %s cluster has %d machines, want 1", name, n)
		}
	}

	release()
	releaseNext()
	f.EventuallyJobsDone(2)
	f.EventuallyClean()
}
