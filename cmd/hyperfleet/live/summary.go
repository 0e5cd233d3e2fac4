// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
)

// finishedWindow is the time for which completed jobs are counted.
const finishedWindow = time.Hour

// Summary is the state of all objects at one time. Templates of `hyperfleet web` use the field names of this
// file.
type Summary struct {
	Now time.Time
	// Waiting and Running count jobs. Finished counts the jobs that completed within the last hour, and
	// Failed counts the failed jobs among them.
	Waiting, Running, Finished, Failed int
	// LongestWait is the longest time for which a waiting job has waited.
	LongestWait time.Duration
	Machines    Machines
	Causes      []CauseGroup
	Pools       []Pool
	Clusters    []Cluster
	// Troubles are the pools, clusters, templates and fleets that are not ready.
	Troubles []Trouble
}

// Machines counts machines by state.
type Machines struct{ Starting, Idle, Busy, Standby, Ending, Failed int }

// Total returns the number of all machines.
func (m Machines) Total() int { return m.Starting + m.Idle + m.Busy + m.Standby + m.Ending + m.Failed }

// CauseGroup is the group of the jobs in a namespace and a pool that wait for the same reason.
type CauseGroup struct {
	Namespace, Pool, Reason, Message string
	Jobs                             int
	// Oldest is the RunnerJob that has waited longest, Wait is the time for which it has waited, and Message
	// is its message.
	Oldest string
	Wait   time.Duration
}

// Pool is a RunnerPool with values that are computed for display.
type Pool struct {
	*v1alpha1.RunnerPool

	Ready Ready
	// BusyShare, IdleShare and StartingShare are percentages of the maximum number of machines. Their sum is
	// at most 100.
	BusyShare, IdleShare, StartingShare float64
}

// Idle returns the number of machines that are ready and run no job.
func (p Pool) Idle() int32 { return p.Status.ReadyReplicas - p.Status.BusyReplicas }

// Starting returns the number of machines that are not ready yet.
func (p Pool) Starting() int32 { return p.Status.Replicas - p.Status.ReadyReplicas }

// Cluster is a HypervisorCluster with values that are computed for display.
type Cluster struct {
	*v1alpha1.HypervisorCluster

	Ready Ready
	// ExcludedNodes is the number of online nodes that are excluded. OfflineNodes is the number of offline nodes.
	ExcludedNodes int
	CPU, Memory   Usage
	OfflineNodes  int
}

// Usage is the used and the total amount of a resource.
type Usage struct{ Used, Total int64 }

// Percent returns the used percentage, at most 100, and 0 if the total is unknown.
func (u Usage) Percent() float64 {
	if u.Total <= 0 {
		return 0
	}

	return min(100*float64(u.Used)/float64(u.Total), 100)
}

// Ready is the condition Ready of an object.
type Ready struct {
	// Status is True, False or Unknown.
	Status          metav1.ConditionStatus
	Reason, Message string
	Since           time.Time
}

// Trouble is an object that is not ready.
type Trouble struct {
	Kind, Namespace, Name string
	Ready                 Ready
}

// NewReady returns the condition Ready of an object. If the object has no such condition, it returns Unknown
// with the reason NotReconciled and the zero time.
func NewReady(conditions []metav1.Condition) Ready {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return Ready{
			metav1.ConditionUnknown, "NotReconciled",
			"the operator has not reconciled the object yet: check that the operator is running", time.Time{},
		}
	}

	return Ready{ready.Status, v1alpha1.CurrentReason(ready.Reason), ready.Message, ready.LastTransitionTime.Time}
}

// Summary returns a summary of all objects in the cache.
func (v *View) Summary(ctx context.Context, now time.Time) (*Summary, error) {
	var (
		pools     v1alpha1.RunnerPoolList
		claims    v1alpha1.MachineClaimList
		clusters  v1alpha1.HypervisorClusterList
		templates v1alpha1.HypervisorMachineTemplateList
		fleets    infrav1.HostFleetList
		all       v1alpha1.RunnerJobList
	)

	var errs []error
	for _, list := range []client.ObjectList{&pools, &claims, &clusters, &templates, &fleets, &all} {
		errs = append(errs, v.List(ctx, list))
	}

	if err := errors.Join(errs...); err != nil {
		return nil, err
	}

	out := &Summary{Now: now}
	out.addJobs(all.Items)

	for i := range claims.Items {
		out.addMachine(&claims.Items[i])
	}

	for i := range pools.Items {
		pool := NewPool(&pools.Items[i])
		out.Pools = append(out.Pools, pool)
		out.addIfNotReady(KindPool, &pools.Items[i], pool.Ready)
	}

	for i := range clusters.Items {
		cluster := NewCluster(&clusters.Items[i])
		out.Clusters = append(out.Clusters, cluster)
		out.addIfNotReady(KindCluster, &clusters.Items[i], cluster.Ready)
	}

	for i := range templates.Items {
		out.addIfNotReady(KindTemplate, &templates.Items[i], NewReady(templates.Items[i].Status.Conditions))
	}

	for i := range fleets.Items {
		out.addIfNotReady(KindFleet, &fleets.Items[i], NewReady(fleets.Items[i].Status.Conditions))
	}

	slices.SortFunc(out.Pools, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(out.Clusters, func(a, b Cluster) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(out.Troubles, func(a, b Trouble) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})

	return out, nil
}

// addJobs counts the jobs by state, and groups the waiting jobs by cause.
func (s *Summary) addJobs(all []v1alpha1.RunnerJob) {
	groups := map[CauseGroup]*CauseGroup{}

	for i := range all {
		job := jobs.NewJob(&all[i], s.Now)
		waited := time.Duration(job.WaitedSeconds * float64(time.Second))

		switch {
		case job.Cause != nil:
			s.Waiting++
			s.LongestWait = max(s.LongestWait, waited)

			key := CauseGroup{Namespace: job.Namespace, Pool: job.Pool, Reason: job.Cause.Reason}

			group := groups[key]
			if group == nil {
				group = &CauseGroup{Namespace: job.Namespace, Pool: job.Pool, Reason: job.Cause.Reason}
				groups[key] = group
			}

			group.Jobs++

			if group.Oldest == "" || waited > group.Wait {
				group.Oldest, group.Wait, group.Message = job.Job, waited, job.Cause.Message
			}
		case job.State == v1alpha1.JobRunning:
			s.Running++
		case all[i].Spec.CompletedAt != nil && s.Now.Sub(all[i].Spec.CompletedAt.Time) < finishedWindow:
			s.Finished++

			if IsFailure(job.Conclusion) {
				s.Failed++
			}
		}
	}

	for _, group := range slices.Collect(maps.Values(groups)) {
		s.Causes = append(s.Causes, *group)
	}

	slices.SortFunc(s.Causes, func(a, b CauseGroup) int {
		return cmp.Or(cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pool, b.Pool),
			cmp.Compare(a.Reason, b.Reason))
	})
}

// IsFailure reports whether the conclusion of a job, as a CI platform names it, means that the job failed. A
// cancelled job has not failed.
func IsFailure(conclusion string) bool {
	return slices.Contains([]string{"failure", "failed", "timed_out", "startup_failure", "broken"}, conclusion)
}

// addMachine counts the machine of a claim by its state.
func (s *Summary) addMachine(claim *v1alpha1.MachineClaim) {
	m := &s.Machines

	switch MachineState(claim) {
	case StateFailed:
		m.Failed++
	case StateEnding:
		m.Ending++
	case StateStandby:
		m.Standby++
	case StateBusy:
		m.Busy++
	case StateIdle:
		m.Idle++
	default:
		m.Starting++
	}
}

func (s *Summary) addIfNotReady(kind string, obj client.Object, ready Ready) {
	if ready.Status != metav1.ConditionTrue {
		s.Troubles = append(s.Troubles, Trouble{kind, obj.GetNamespace(), obj.GetName(), ready})
	}
}

// NewPool returns a RunnerPool for display. If the pool is ready but the operator cannot learn of its jobs,
// because DemandSourcesReady is False and the pool has no webhook, Ready is the condition DemandSourcesReady.
func NewPool(pool *v1alpha1.RunnerPool) Pool {
	out := Pool{RunnerPool: pool, Ready: NewReady(pool.Status.Conditions)}

	sources := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDemandSourcesReady)
	hasNoDemand := sources != nil && sources.Status == metav1.ConditionFalse && pool.Spec.Workload.Webhook == nil

	if hasNoDemand && out.Ready.Status == metav1.ConditionTrue {
		out.Ready = Ready{sources.Status, sources.Reason, sources.Message, sources.LastTransitionTime.Time}
	}

	total := float64(max(pool.Spec.Scaling.MaxReplicas, pool.Status.Replicas, 1))
	out.BusyShare = 100 * float64(pool.Status.BusyReplicas) / total
	out.IdleShare = 100 * float64(out.Idle()) / total
	out.StartingShare = 100 * float64(out.Starting()) / total

	return out
}

// NewCluster returns a HypervisorCluster for display.
func NewCluster(cluster *v1alpha1.HypervisorCluster) Cluster {
	out := Cluster{HypervisorCluster: cluster, Ready: NewReady(cluster.Status.Conditions)}

	for i := range cluster.Status.Nodes {
		node := &cluster.Status.Nodes[i]
		cpu, memory := NodeUsage(node)

		out.CPU = Usage{out.CPU.Used + cpu.Used, out.CPU.Total + cpu.Total}
		out.Memory = Usage{out.Memory.Used + memory.Used, out.Memory.Total + memory.Total}

		switch ready := NewReady(node.Conditions); {
		case !node.Online:
			out.OfflineNodes++
		case ready.Status == metav1.ConditionFalse:
			out.ExcludedNodes++
		}
	}

	return out
}

// NodeUsage returns the used CPUs and the used memory of a node, or zero values if the node reports no
// capacity.
func NodeUsage(node *v1alpha1.HypervisorNodeStatus) (cpu, memory Usage) {
	if node.Capacity == nil || node.Available == nil {
		return Usage{}, Usage{}
	}

	return Usage{node.Capacity.CPU - node.Available.CPU, node.Capacity.CPU},
		Usage{node.Capacity.Memory.Value() - node.Available.Memory.Value(), node.Capacity.Memory.Value()}
}
