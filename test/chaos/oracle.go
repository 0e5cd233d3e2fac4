// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// oracle checks the invariants against the state of the simulators.
type oracle struct {
	fleet *fleet.Fleet
	// foreignVMs holds the fingerprints of the VMs that existed at the start, by VMID.
	foreignVMs map[int]string
	// claims holds the names of all claims that have existed. violations is the set of violated invariants.
	claims     map[types.UID]string
	violations map[string]bool
	// killed counts the machines that were powered off as a disturbance.
	killed int
}

func newOracle(f *fleet.Fleet) *oracle {
	o := &oracle{fleet: f, foreignVMs: map[int]string{}, claims: map[types.UID]string{}, violations: map[string]bool{}}

	for _, vm := range f.PVE.Snapshot().VMs {
		o.foreignVMs[vm.VMID] = fingerprint(vm)
	}

	return o
}

// fingerprint returns the complete state of a VM as JSON, to detect changes.
func fingerprint(vm pve.VMState) string {
	text, err := json.Marshal(vm)
	if err != nil {
		return err.Error()
	}

	return string(text)
}

func (o *oracle) addViolationf(format string, args ...any) {
	o.violations[fmt.Sprintf(format, args...)] = true
}

// check checks the invariants once. It reads the claims before the machines. Therefore, if a machine exists
// whose claim is missing, the claim was deleted before its machine.
func (o *oracle) check(ctx context.Context) {
	var claims v1alpha1.MachineClaimList
	if err := o.fleet.Client.List(ctx, &claims, client.InNamespace(o.fleet.Namespace)); err != nil {
		return
	}

	state := o.fleet.PVE.Snapshot()
	existing := map[types.UID]bool{}

	for i := range claims.Items {
		claim := &claims.Items[i]
		existing[claim.UID] = true
		o.claims[claim.UID] = claim.Name

		if limit := o.fleet.Runners.MaxAttempts; int(claim.Status.Attempts) > limit {
			o.addViolationf("claim %s has made %d attempts, want at most %d", claim.Name, claim.Status.Attempts, limit)
		}
	}

	owned := map[types.UID][]int{}

	for _, vm := range state.VMs {
		uid := o.ownerOf(vm)
		if uid == "" {
			continue
		}

		owned[uid] = append(owned[uid], vm.VMID)

		if !existing[uid] {
			o.addViolationf("claim %s is deleted, but its VM %d exists (%s)", o.claims[uid], vm.VMID, vm.Status)
		}
	}

	for uid, ids := range owned {
		if len(ids) > 1 {
			o.addViolationf("claim %s has %d VMs: %v", o.claims[uid], len(ids), ids)
		}
	}
}

// ownerOf returns the UID of the claim in the ownership record of a VM, "" if no known claim owns it.
func (o *oracle) ownerOf(vm pve.VMState) types.UID {
	for uid := range o.claims {
		if strings.Contains(vm.Config["description"], string(uid)) {
			return uid
		}
	}

	return ""
}

// compareStatus compares the statuses of objects with the simulators after the disturbances have ended. Each
// job must have its conclusion, the pool must have no machines, and all nodes must be online. It returns the
// first difference, "" if there is none.
func (o *oracle) compareStatus(ctx context.Context, pool *v1alpha1.RunnerPool) string {
	var jobs v1alpha1.RunnerJobList
	if err := o.fleet.Client.List(ctx, &jobs, client.InNamespace(o.fleet.Namespace)); err != nil {
		return err.Error()
	}

	known := map[string]*v1alpha1.RunnerJob{}
	for i := range jobs.Items {
		known[jobs.Items[i].Spec.ID] = &jobs.Items[i]
	}

	for _, job := range o.fleet.GitHub.State().Jobs {
		id := strconv.FormatInt(job.ID, 10)

		switch runnerJob := known[id]; {
		case runnerJob == nil:
			return "job " + id + " has no RunnerJob"
		case runnerJob.Spec.State != v1alpha1.JobCompleted || runnerJob.Spec.Conclusion != job.Conclusion:
			return fmt.Sprintf("RunnerJob of job %s is %s %q, but the job ended with %q",
				id, runnerJob.Spec.State, runnerJob.Spec.Conclusion, job.Conclusion)
		}
	}

	if err := o.fleet.Client.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
		return err.Error()
	}

	if s := pool.Status; s.Replicas+s.BusyReplicas+s.QueuedJobs+s.RunningJobs != 0 {
		return fmt.Sprintf("the pool's status has %d machines, %d busy, %d jobs queued, %d running",
			s.Replicas, s.BusyReplicas, s.QueuedJobs, s.RunningJobs)
	}

	cluster := o.fleet.NewCluster()
	if err := o.fleet.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
		return err.Error()
	}

	for _, node := range cluster.Status.Nodes {
		if !node.Online {
			return "the cluster's status has node " + node.Name + " offline"
		}
	}

	if !step.IsReady(cluster) {
		return "the cluster is not ready: " + step.NotReadyMessage(cluster)
	}

	return ""
}

// listViolations checks the invariants that apply after all disturbances and jobs have ended, and returns all
// violations, sorted.
func (o *oracle) listViolations(jobs int) []string {
	failed, open := 0, 0

	for _, job := range o.fleet.GitHub.State().Jobs {
		switch {
		case job.Status != "completed":
			open++
		case job.Conclusion != "success":
			failed++
		}
	}

	if open > 0 {
		o.addViolationf("%d of %d jobs have not ended", open, jobs)
	}

	if failed > o.killed {
		o.addViolationf("%d jobs failed, but only %d machines were powered off", failed, o.killed)
	}

	clones := 0

	for _, call := range o.fleet.PVE.Calls() {
		if call.Method == http.MethodPost && strings.HasSuffix(call.Path, "/clone") && call.Phase == pve.PhaseAfter {
			clones++
		}
	}

	if limit := len(o.claims) * o.fleet.Runners.MaxAttempts; clones > limit {
		o.addViolationf("%d clones were requested for %d claims, want at most %d", clones, len(o.claims), limit)
	}

	current := map[int]string{}
	for _, vm := range o.fleet.PVE.Snapshot().VMs {
		current[vm.VMID] = fingerprint(vm)
	}

	for id, before := range o.foreignVMs {
		if current[id] != before {
			o.addViolationf("VM %d of another owner has changed", id)
		}
	}

	return slices.Sorted(maps.Keys(o.violations))
}
