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

// JobCount is how many jobs need a pool's machines.
type JobCount struct {
	// Queued is how many jobs wait for a runner.
	Queued int
	// Running is how many jobs have a runner.
	Running int
}

// FindDemand counts the jobs that Assign gives to the pool with the key. It also returns the sizes of the
// queued ones, in the order in which their machines should be created.
func FindDemand(jobs []v1alpha1.RunnerJob, pools []Pool, key types.NamespacedName) (count JobCount, sizes []Size) {
	Assign(jobs, pools, func(job *v1alpha1.RunnerJob, pool Pool) {
		switch {
		case pool.Key() != key:
		case job.Spec.State == v1alpha1.JobQueued:
			size, _ := pool.ParseSize(job.Spec)
			sizes = append(sizes, size)
			count.Queued++
		default:
			count.Running++
		}
	})

	return count, sizes
}

// Assign chooses a pool of the job's own namespace for each job that needs a machine, and calls
// assign for the job and its pool. The order is the order in which machines should be created:
// running jobs first, then queued jobs by their priority at the platform, then by age.
//
// Assign chooses the pool with the highest priority that can run the job and has free capacity (see
// Match). If none has free capacity, it chooses the first pool that can run the job. It skips jobs
// that wait for approval, are completed or are being deleted, and jobs that no pool can run.
func Assign(jobs []v1alpha1.RunnerJob, pools []Pool, assign func(*v1alpha1.RunnerJob, Pool)) {
	byNamespace := map[string][]Pool{}

	for _, pool := range slices.SortedFunc(slices.Values(pools), comparePools) {
		byNamespace[pool.Namespace] = append(byNamespace[pool.Namespace], pool)
	}

	active := make([]*v1alpha1.RunnerJob, 0, len(jobs))

	for i := range jobs {
		state := jobs[i].Spec.State
		if jobs[i].DeletionTimestamp.IsZero() && (state == v1alpha1.JobQueued || state == v1alpha1.JobRunning) {
			active = append(active, &jobs[i])
		}
	}

	slices.SortFunc(active, compareJobs)

	taken := map[types.NamespacedName]int{}

	for _, job := range active {
		pool, ok := choosePool(job.Spec, byNamespace[job.Namespace], taken)
		if !ok {
			continue
		}

		taken[pool.Key()]++
		assign(job, pool)
	}
}

// compareJobs orders running jobs, which already have their machines, before queued jobs. It orders
// queued jobs by descending platform priority, then by age, then by name.
func compareJobs(a, b *v1alpha1.RunnerJob) int {
	return cmp.Or(
		-cmp.Compare(rank(a.Spec.State), rank(b.Spec.State)),
		-cmp.Compare(a.Spec.Priority, b.Spec.Priority),
		queueTime(a).Compare(queueTime(b)),
		cmp.Compare(a.Name, b.Name),
	)
}

func queueTime(job *v1alpha1.RunnerJob) time.Time {
	switch {
	case job.Spec.QueuedAt != nil:
		return job.Spec.QueuedAt.Time
	case job.Spec.ReceivedAt != nil:
		return job.Spec.ReceivedAt.Time
	default:
		return job.CreationTimestamp.Time
	}
}

// choosePool returns the first of the ordered pools that can run the job and has free capacity, or
// else the first pool that can run the job. It returns false if no pool can.
func choosePool(job workload.Job, pools []Pool, taken map[types.NamespacedName]int) (Pool, bool) {
	var (
		first Pool
		found bool
	)

	for _, pool := range pools {
		if !pool.canRun(job) {
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
