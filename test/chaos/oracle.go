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

// oracle holds what must be true whatever happens against what the simulators know.
type oracle struct {
	fleet *fleet.Fleet
	// strangers are the VMs that were there before, as they were.
	strangers map[int]string
	// seen are the claims that ever were, and wrong what must not have been.
	seen  map[types.UID]string
	wrong map[string]bool
	// killed counts the machines that were switched off.
	killed int
}

func newOracle(f *fleet.Fleet) *oracle {
	o := &oracle{fleet: f, strangers: map[int]string{}, seen: map[types.UID]string{}, wrong: map[string]bool{}}

	for _, vm := range f.PVE.Snapshot().VMs {
		o.strangers[vm.VMID] = imprint(vm)
	}

	return o
}

// imprint is everything that must not change about a VM.
func imprint(vm pve.VMState) string {
	text, err := json.Marshal(vm)
	if err != nil {
		return err.Error()
	}

	return string(text)
}

func (o *oracle) complainf(format string, args ...any) { o.wrong[fmt.Sprintf(format, args...)] = true }

// look is one look at a moment. The claims are read before the machines: a machine whose claim
// was gone already when they were read has been called gone while it was there.
func (o *oracle) look(ctx context.Context) {
	var claims v1alpha1.MachineClaimList
	if err := o.fleet.Client.List(ctx, &claims, client.InNamespace(o.fleet.Namespace)); err != nil {
		return
	}

	now := o.fleet.PVE.Snapshot()
	there := map[types.UID]bool{}

	for i := range claims.Items {
		claim := &claims.Items[i]
		there[claim.UID] = true
		o.seen[claim.UID] = claim.Name

		if most := o.fleet.Runners.MaxAttempts; int(claim.Status.Attempts) > most {
			o.complainf("claim %s has tried %d times, and may %d times", claim.Name, claim.Status.Attempts, most)
		}
	}

	owned := map[types.UID][]int{}

	for _, vm := range now.VMs {
		uid := o.owner(vm)
		if uid == "" {
			continue
		}

		owned[uid] = append(owned[uid], vm.VMID)

		if !there[uid] {
			o.complainf("claim %s is gone, and its VM %d is there (%s)", o.seen[uid], vm.VMID, vm.Status)
		}
	}

	for uid, ids := range owned {
		if len(ids) > 1 {
			o.complainf("claim %s has %d VMs: %v", o.seen[uid], len(ids), ids)
		}
	}
}

// owner is the claim whose mark a VM bears, if it is known.
func (o *oracle) owner(vm pve.VMState) types.UID {
	for uid := range o.seen {
		if strings.Contains(vm.Config["description"], string(uid)) {
			return uid
		}
	}

	return ""
}

// told holds what the objects' statuses say, when all is over, against what the simulators
// know: each job's end, a pool without machines, and nodes that are all there. It gives the
// first thing that is not so (yet).
func (o *oracle) told(ctx context.Context, pool *v1alpha1.RunnerPool) string {
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

		switch said := known[id]; {
		case said == nil:
			return "job " + id + " is not known"
		case said.Spec.State != v1alpha1.JobCompleted || said.Spec.Conclusion != job.Conclusion:
			return fmt.Sprintf("job %s is said to be %s %q, and ended with %q", id, said.Spec.State, said.Spec.Conclusion, job.Conclusion)
		}
	}

	if err := o.fleet.Client.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
		return err.Error()
	}

	if s := pool.Status; s.Replicas+s.BusyReplicas+s.QueuedJobs+s.RunningJobs != 0 {
		return fmt.Sprintf("the pool says %d machines, %d busy, %d jobs queued, %d running",
			s.Replicas, s.BusyReplicas, s.QueuedJobs, s.RunningJobs)
	}

	cluster := o.fleet.NewCluster()
	if err := o.fleet.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
		return err.Error()
	}

	for _, node := range cluster.Status.Nodes {
		if !node.Online {
			return "node " + node.Name + " is said to be offline"
		}
	}

	if !step.IsReady(cluster) {
		return "the cluster is not ready: " + step.WhyNot(cluster)
	}

	return ""
}

// verdict is the last word, when the troubles are over and all jobs with them.
func (o *oracle) verdict(jobs int) []string {
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
		o.complainf("%d of %d jobs are not over", open, jobs)
	}

	if failed > o.killed {
		o.complainf("%d jobs failed, and %d machines were switched off", failed, o.killed)
	}

	clones := 0

	for _, call := range o.fleet.PVE.Calls() {
		if call.Method == http.MethodPost && strings.HasSuffix(call.Path, "/clone") && call.Phase == pve.After {
			clones++
		}
	}

	if most := len(o.seen) * o.fleet.Runners.MaxAttempts; clones > most {
		o.complainf("%d clones were asked for %d claims, and at most %d may be", clones, len(o.seen), most)
	}

	now := map[int]string{}
	for _, vm := range o.fleet.PVE.Snapshot().VMs {
		now[vm.VMID] = imprint(vm)
	}

	for id, was := range o.strangers {
		if now[id] != was {
			o.complainf("VM %d is somebody else's, and is not as it was", id)
		}
	}

	return slices.Sorted(maps.Keys(o.wrong))
}
