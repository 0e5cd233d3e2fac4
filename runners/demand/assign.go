// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Count is how many jobs ask for a pool's machines.
type Count struct {
	// Queued jobs wait for a runner.
	Queued int
	// Running jobs have one.
	Running int
}

// Demand counts the jobs by the pool that Assign gives them. Pools without jobs are in
// the map too, with zeros.
func Demand(jobs []v1alpha1.RunnerJob, pools []Pool) map[types.NamespacedName]Count {
	counts := make(map[types.NamespacedName]Count, len(pools))
	for _, pool := range pools {
		counts[pool.Key()] = Count{}
	}

	Assign(jobs, pools, func(job *v1alpha1.RunnerJob, pool Pool) {
		count := counts[pool.Key()]
		if job.Spec.State == v1alpha1.JobQueued {
			count.Queued++
		} else {
			count.Running++
		}

		counts[pool.Key()] = count
	})

	return counts
}

// Assign gives each job that asks for a machine to a pool of its own namespace, in the
// order in which machines should be made: by priority with the platform, then by age. A
// job goes to the pool of the highest priority that takes it and has room (see Match); if
// none has room, it waits for the first of them. Jobs that wait for approval, are
// completed or are being deleted ask for nothing, and jobs that no pool takes are left
// out.
func Assign(jobs []v1alpha1.RunnerJob, pools []Pool, give func(*v1alpha1.RunnerJob, Pool)) {
	byNamespace := map[string][]Pool{}

	for _, pool := range slices.SortedFunc(slices.Values(pools), order) {
		byNamespace[pool.Namespace] = append(byNamespace[pool.Namespace], pool)
	}

	live := make([]*v1alpha1.RunnerJob, 0, len(jobs))

	for i := range jobs {
		state := jobs[i].Spec.State
		if jobs[i].DeletionTimestamp.IsZero() && (state == v1alpha1.JobQueued || state == v1alpha1.JobRunning) {
			live = append(live, &jobs[i])
		}
	}

	slices.SortFunc(live, byTurn)

	taken := map[types.NamespacedName]int{}

	for _, job := range live {
		pool, ok := choose(job.Spec, byNamespace[job.Namespace], taken)
		if !ok {
			continue
		}

		taken[pool.Key()]++
		give(job, pool)
	}
}

// byTurn puts running jobs first, which have their machines; then queued ones by their
// platform's priority, and then by age.
func byTurn(a, b *v1alpha1.RunnerJob) int {
	return cmp.Or(
		-cmp.Compare(rank(a.Spec.State), rank(b.Spec.State)),
		-cmp.Compare(a.Spec.Priority, b.Spec.Priority),
		queuedAt(a).Compare(queuedAt(b)),
		cmp.Compare(a.Name, b.Name),
	)
}

func queuedAt(job *v1alpha1.RunnerJob) time.Time {
	switch {
	case job.Spec.QueuedAt != nil:
		return job.Spec.QueuedAt.Time
	case job.Spec.ReceivedAt != nil:
		return job.Spec.ReceivedAt.Time
	default:
		return job.CreationTimestamp.Time
	}
}

// choose gives the first of the pools, which are in order, that takes the job and has
// room for it, or else the first that takes it.
func choose(job workload.Job, pools []Pool, taken map[types.NamespacedName]int) (Pool, bool) {
	var (
		first Pool
		found bool
	)

	for _, pool := range pools {
		if !pool.takes(job) {
			continue
		}

		if taken[pool.Key()] < pool.Max {
			return pool, true
		}

		if !found {
			first, found = pool, true
		}
	}

	return first, found
}
