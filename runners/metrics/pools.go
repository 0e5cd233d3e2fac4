// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	kit "github.com/hyperfleet/hyperfleet/kit/metrics"
)

// poolDescs are the metrics of pools, and of jobs and machines by pool.
type poolDescs struct {
	queued, running, desired, minimum, maximum, machines, failed, paused *prometheus.Desc
	waiting, longest, phases                                             *prometheus.Desc
}

func newPoolDescs() poolDescs {
	pool := []string{"namespace", "pool"}

	return poolDescs{
		queued:  desc("pool_jobs_queued", "Jobs that wait for a runner of the pool.", pool...),
		running: desc("pool_jobs_running", "Jobs that run on the pool's machines.", pool...),
		desired: desc("pool_machines_desired", "Machines that the pool wants now.", pool...),
		minimum: desc("pool_machines_min", "Machines that the pool keeps without jobs (spec.scaling.minReplicas).", pool...),
		maximum: desc("pool_machines_max", "Machines that the pool has at most (spec.scaling.maxReplicas).", pool...),
		machines: desc("pool_machines", "Machines of the pool by what they do: starting, idle, busy, standby (made, not started).",
			append(pool, "state")...),
		failed: desc("pool_failures_in_a_row", "Machines of the pool that failed since one last got ready.", pool...),
		paused: desc("pool_paused", "1 while the pool is paused.", pool...),
		waiting: desc("jobs_waiting", "Jobs without a runner, by what they wait for: the reason of their condition Ready. "+
			"The pool is empty where none takes them.", append(pool, "reason")...),
		longest: desc("jobs_longest_wait_seconds", "How long the job that waits longest has waited; 0 while none does.", pool...),
		phases:  desc("machines", "MachineClaims by phase; the pool is empty for those that no pool made.", append(pool, "phase")...),
	}
}

func (d *poolDescs) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		d.queued, d.running, d.desired, d.minimum, d.maximum, d.machines, d.failed, d.paused, d.waiting, d.longest, d.phases,
	} {
		ch <- desc
	}
}

// collect gives the numbers in the pools' status.
func (d *poolDescs) collect(ch chan<- prometheus.Metric, pools []v1alpha1.RunnerPool) {
	for i := range pools {
		pool := &pools[i]
		status, scaling := &pool.Status, &pool.Spec.Scaling
		labels := []string{pool.Namespace, pool.Name}

		gauge(ch, d.queued, status.QueuedJobs, labels...)
		gauge(ch, d.running, status.RunningJobs, labels...)
		gauge(ch, d.desired, status.DesiredReplicas, labels...)
		gauge(ch, d.minimum, scaling.MinReplicas, labels...)
		gauge(ch, d.maximum, scaling.MaxReplicas, labels...)
		gauge(ch, d.failed, status.FailedClaims, labels...)
		gauge(ch, d.paused, one(pool.Spec.Paused), labels...)

		for state, n := range map[string]int32{
			"starting": status.Replicas - status.ReadyReplicas, "idle": status.ReadyReplicas - status.BusyReplicas,
			"busy": status.BusyReplicas, "standby": status.StandbyReplicas,
		} {
			gauge(ch, d.machines, n, pool.Namespace, pool.Name, state)
		}
	}
}

// queue is the jobs that wait for one pool.
type queue struct{ namespace, pool string }

// collectJobs counts the jobs that wait.
func (d *poolDescs) collectJobs(ch chan<- prometheus.Metric, jobs []v1alpha1.RunnerJob, reasons *kit.Bounded, now time.Time) {
	type cause struct {
		queue

		reason string
	}

	waiting, longest := map[cause]int{}, map[queue]time.Duration{}

	for i := range jobs {
		job := &jobs[i]
		at := queue{job.Namespace, job.Status.Pool}
		longest[at] = max(longest[at], 0)

		if job.Spec.State != v1alpha1.JobQueued && job.Spec.State != v1alpha1.JobWaiting {
			continue
		}

		reason := "NotSeen"
		if ready := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			reason = ready.Reason
		}

		waiting[cause{at, reasons.Value(reason)}]++

		// What waits for a gate of its platform is not ours to hasten.
		if job.Spec.State == v1alpha1.JobQueued {
			longest[at] = max(longest[at], now.Sub(born(job)))
		}
	}

	for at, n := range waiting {
		gauge(ch, d.waiting, n, at.namespace, at.pool, at.reason)
	}

	for at, wait := range longest {
		gauge(ch, d.longest, wait.Seconds(), at.namespace, at.pool)
	}
}

// born is when a job began to wait.
func born(job *v1alpha1.RunnerJob) time.Time {
	queued, received := &metav1.Time{}, &metav1.MicroTime{}

	return cmp.Or(
		*cmp.Or(job.Spec.QueuedAt, queued), metav1.Time(*cmp.Or(job.Spec.ReceivedAt, received)), job.CreationTimestamp,
	).Time
}

// collectMachines counts the claims by phase.
func (d *poolDescs) collectMachines(ch chan<- prometheus.Metric, claims []v1alpha1.MachineClaim) {
	type key struct{ namespace, pool, phase string }

	count := map[key]int{}

	for i := range claims {
		claim := &claims[i]
		at := key{namespace: claim.Namespace, phase: string(cmp.Or(claim.Status.Phase, v1alpha1.MachineClaimPending))}

		if ref := claim.Spec.RunnerPoolRef; ref != nil {
			at.pool = ref.Name
		}

		count[at]++
	}

	for at, n := range count {
		gauge(ch, d.phases, n, at.namespace, at.pool, at.phase)
	}
}
