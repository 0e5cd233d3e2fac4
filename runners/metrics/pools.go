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
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// poolDescs holds the descriptions of the metrics of pools, and of jobs and machines by pool.
type poolDescs struct {
	queued, running, desired, minimum, maximum, machines, failed, paused *prometheus.Desc
	waitingJobs, longestWait, machinesByPhase                            *prometheus.Desc
}

func newPoolDescs() poolDescs {
	pool := []string{"namespace", "pool"}

	return poolDescs{
		queued:  newDesc("pool_jobs_queued", "Queued jobs that the pool serves.", pool...),
		running: newDesc("pool_jobs_running", "Jobs that run on the pool's machines.", pool...),
		desired: newDesc("pool_machines_desired", "Desired number of machines of the pool.", pool...),
		minimum: newDesc("pool_machines_min", "Minimum number of machines of the pool (spec.scaling.minReplicas).", pool...),
		maximum: newDesc("pool_machines_max", "Maximum number of machines of the pool (spec.scaling.maxReplicas).", pool...),
		machines: newDesc("pool_machines", "Machines of the pool by state: starting, idle, busy, standby (created, not started).",
			append(pool, "state")...),
		failed: newDesc("pool_consecutive_failures", "Machines of the pool that failed since the last one became ready.", pool...),
		paused: newDesc("pool_paused", "1 while the pool is paused.", pool...),
		waitingJobs: newDesc("jobs_waiting", "Jobs without a runner, by the reason of their condition Ready. "+
			"The pool is empty if no pool serves the job.", append(pool, "reason")...),
		longestWait: newDesc("jobs_oldest_queued_age_seconds",
			"How long the oldest queued job has waited; 0 if no job is queued.", pool...),
		machinesByPhase: newDesc("machines", "MachineClaims by phase. The pool is empty if no pool created the claim.",
			append(pool, "phase")...),
	}
}

func (d *poolDescs) describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		d.queued, d.running, d.desired, d.minimum, d.maximum, d.machines, d.failed, d.paused,
		d.waitingJobs, d.longestWait, d.machinesByPhase,
	} {
		ch <- desc
	}
}

// collect sends the numbers in the pools' status.
func (d *poolDescs) collect(ch chan<- prometheus.Metric, pools []v1alpha1.RunnerPool) {
	for i := range pools {
		pool := &pools[i]
		status, scaling := &pool.Status, &pool.Spec.Scaling
		labels := []string{pool.Namespace, pool.Name}

		sendGauge(ch, d.queued, status.QueuedJobs, labels...)
		sendGauge(ch, d.running, status.RunningJobs, labels...)
		sendGauge(ch, d.desired, status.DesiredReplicas, labels...)
		sendGauge(ch, d.minimum, scaling.MinReplicas, labels...)
		sendGauge(ch, d.maximum, scaling.MaxReplicas, labels...)
		sendGauge(ch, d.failed, status.FailedClaims, labels...)
		sendGauge(ch, d.paused, boolToInt(pool.Spec.Paused), labels...)

		for state, n := range map[string]int32{
			"starting": status.Replicas - status.ReadyReplicas, "idle": status.ReadyReplicas - status.BusyReplicas,
			"busy": status.BusyReplicas, "standby": status.StandbyReplicas,
		} {
			sendGauge(ch, d.machines, n, pool.Namespace, pool.Name, state)
		}
	}
}

// queue identifies the queued jobs of one pool.
type queue struct{ namespace, pool string }

// collectJobs sends the numbers of waiting jobs by cause, and the longest wait, by pool.
func (d *poolDescs) collectJobs(
	ch chan<- prometheus.Metric, jobs []*v1alpha1.RunnerJob, reasons *kit.LabelLimiter, now time.Time,
) {
	type cause struct {
		queue

		reason string
	}

	waiting, longest := map[cause]int{}, map[queue]time.Duration{}

	for _, job := range jobs {
		labels := queue{job.Namespace, job.PoolName()}
		longest[labels] = max(longest[labels], 0)

		if job.Spec.State != v1alpha1.JobQueued && job.Spec.State != v1alpha1.JobWaiting {
			continue
		}

		reason := "NotReconciled"
		if ready := meta.FindStatusCondition(job.Status.Conditions, v1alpha1.ConditionReady); ready != nil {
			reason = ready.Reason
		} else if demand.IsStatusDelayed(job, now) {
			reason = demand.ReasonWaitingForMachine
		}

		waiting[cause{labels, reasons.Limit(reason)}]++

		// A job that its platform has not released does not count, because the operator cannot
		// shorten its wait.
		if job.Spec.State == v1alpha1.JobQueued {
			longest[labels] = max(longest[labels], now.Sub(queueTime(job)))
		}
	}

	for labels, n := range waiting {
		sendGauge(ch, d.waitingJobs, n, labels.namespace, labels.pool, labels.reason)
	}

	for labels, wait := range longest {
		sendGauge(ch, d.longestWait, wait.Seconds(), labels.namespace, labels.pool)
	}
}

// queueTime returns when a job began to wait.
func queueTime(job *v1alpha1.RunnerJob) time.Time {
	queued, received := &metav1.Time{}, &metav1.MicroTime{}

	return cmp.Or(
		*cmp.Or(job.Spec.QueuedAt, queued), metav1.Time(*cmp.Or(job.Spec.ReceivedAt, received)), job.CreationTimestamp,
	).Time
}

// collectMachines sends the numbers of claims by phase.
func (d *poolDescs) collectMachines(ch chan<- prometheus.Metric, claims []*v1alpha1.MachineClaim) {
	type key struct{ namespace, pool, phase string }

	count := map[key]int{}

	for _, claim := range claims {
		phase := cmp.Or(claim.Status.Phase, v1alpha1.MachineClaimPending)
		count[key{claim.Namespace, claim.PoolName(), string(phase)}]++
	}

	for labels, n := range count {
		sendGauge(ch, d.machinesByPhase, n, labels.namespace, labels.pool, labels.phase)
	}
}
