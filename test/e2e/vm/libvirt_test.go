// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/e2e/vm"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/progress"
)

const (
	// parallelMachines is the number of machines that boot at the same time, because emulation takes a core for each.
	parallelMachines = 2
	// manyMachines is the number of machines whose makespan is measured.
	manyMachines = 20
	// makespanGoal is the goal for their makespan, compared with the floor. The test does not check it, because it measures a time.
	makespanGoal = 1.15
	jobDuration  = 2 * time.Second
	// manyTimeout limits the wait for their jobs.
	manyTimeout = 25 * time.Minute
)

// libvirtRun is a fleet on three libvirt hosts.
type libvirtRun struct {
	*fleet.Fleet

	t        *testing.T
	hosts    *vm.Hosts
	recorder *vm.Recorder
	sayf     func(string, ...any)
}

func newLibvirtRun(t *testing.T) *libvirtRun {
	t.Helper()

	images := vm.FindImages(t)
	logs := images.CreateLogDir(t)
	env := kube.Start(t, kube.WithCRDs("../../../deploy/crds"))
	hosts := vm.StartHosts(t, images, logs)

	f := fleet.New(t, env, fleet.Options{})
	f.Timeout = waitTimeout
	hosts.NewFleet(t, f, parallelMachines)
	vm.StartOperator(t, f, nil, logs)
	f.EventuallyReady(f.NewPool(0))

	return &libvirtRun{Fleet: f, t: t, hosts: hosts, recorder: vm.NewRecorder(), sayf: progress.NewPrinter(t)}
}

func (r *libvirtRun) must(err error) {
	r.t.Helper()

	if err != nil {
		r.t.Fatal(err)
	}
}

// queue queues jobs, forgets the machines of earlier jobs, and returns the jobs.
func (r *libvirtRun) queue(spec control.JobSpec) []control.Job {
	r.recorder = vm.NewRecorder()
	spec.Labels = []string{"linux"}

	return r.GitHub.Queue(spec)
}

// await waits until all jobs have the status.
func (r *libvirtRun) await(jobs []control.Job, status string) []control.Job {
	r.t.Helper()

	var found []control.Job

	r.Eventually(fmt.Sprintf("%d jobs being %s", len(jobs), status), func() (bool, string) {
		r.must(r.recorder.Update(r.t.Context(), r.Fleet))

		found = slices.DeleteFunc(r.GitHub.State().Jobs, func(j control.Job) bool {
			return j.Status != status || !slices.ContainsFunc(jobs, func(own control.Job) bool { return own.ID == j.ID })
		})

		return len(found) == len(jobs), fmt.Sprintf("%d are", len(found))
	})

	return found
}

// run waits until the jobs are over, and checks that they succeeded on the hosts.
func (r *libvirtRun) run(jobs []control.Job, hosts ...string) {
	r.t.Helper()

	for _, job := range r.await(jobs, "completed") {
		if job.Conclusion != "success" {
			r.t.Errorf("job %d ended with %s", job.ID, job.Conclusion)
		}
	}

	for _, node := range r.recorder.Nodes() {
		if !slices.Contains(hosts, node) {
			r.t.Errorf("a machine ran on %s, want %s", node, strings.Join(hosts, " or "))
		}
	}
}

// awaitOffline waits until the cluster reports the host as offline.
func (r *libvirtRun) awaitOffline(host string) {
	r.t.Helper()
	r.Eventually(host+" being offline", func() (bool, string) {
		var cluster v1alpha1.HypervisorCluster

		r.must(r.Client.Get(r.t.Context(), client.ObjectKey{Name: r.Cluster}, &cluster))

		isOffline := slices.ContainsFunc(cluster.Status.Nodes, func(n v1alpha1.HypervisorNodeStatus) bool {
			return n.Name == host && !n.Online
		})

		return isOffline, fmt.Sprint(cluster.Status.Nodes)
	})
}

// Jobs run in machines that boot on three libvirt hosts, from their webhooks to the deletion of the machines. The jobs go
// on while the pool of one host is full, one host is killed, and one hangs while a machine runs on it.
func TestJobsOnLibvirtHosts(t *testing.T) { //nolint:paralleltest // the boots must not run in parallel
	r := newLibvirtRun(t)
	first, second, third := r.hosts.ByName["host-1"], r.hosts.ByName["host-2"], r.hosts.ByName["host-3"]

	r.sayf("two jobs, while the pool of host-3 is full")
	r.must(third.FillPool())
	r.run(r.queue(control.JobSpec{Count: 2, Command: jobScript}), "host-1", "host-2")
	r.hosts.EventuallyClean(r.Fleet)

	r.sayf("a job, while host-2 is down as well")
	r.must(second.Kill())
	r.awaitOffline("host-2")

	hanging := r.queue(control.JobSpec{Duration: jobDuration})
	r.await(hanging, "in_progress")

	r.sayf("another job on host-3, which has space again, while host-1 hangs")
	r.must(first.Suspend())
	r.run(hanging, "host-1")
	// The operator does not know yet that host-1 hangs, and may place the machine there. It replaces the machine later.
	r.must(third.EmptyPool())
	r.run(r.queue(control.JobSpec{Command: jobScript}), "host-1", "host-3")

	r.sayf("all hosts are back")
	r.must(first.Resume())
	r.must(second.Restart(t.Context()))
	r.hosts.EventuallyClean(r.Fleet)

	if testing.Short() {
		return
	}

	r.measureMany()
}

// measureMany prints how long many machines take, compared with the time for which machines existed. Only
// parallelMachines exist at the same time, so the difference is the time of the operator.
func (r *libvirtRun) measureMany() {
	r.t.Helper()
	r.sayf("%d jobs on three hosts, %d at a time", manyMachines, parallelMachines)
	r.Timeout = manyTimeout

	jobs := r.queue(control.JobSpec{Count: manyMachines, Duration: jobDuration})
	r.run(jobs, r.hosts.Names...)
	r.Eventually("the deletion of all claims", func() (bool, string) {
		r.must(r.recorder.Update(r.t.Context(), r.Fleet))

		existing := slices.DeleteFunc(r.recorder.Machines(), func(m vm.Machine) bool { return !m.DeletedAt.IsZero() })

		return len(existing) == 0, fmt.Sprintf("%d exist", len(existing))
	})
	r.hosts.EventuallyClean(r.Fleet)

	makespan, busy, err := vm.Makespan(r.recorder.Machines(), manyMachines)
	r.must(err)

	floor := busy.Seconds() / parallelMachines
	r.sayf("%d machines from the first clone to the last deletion: %.2f of the floor of their times (%d at a time), goal %.2f",
		manyMachines, makespan.Seconds()/floor, parallelMachines, makespanGoal)
}
