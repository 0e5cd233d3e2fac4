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

// recently is how far back finished jobs are counted.
const recently = time.Hour

// Summary is all that matters at one moment.
type Summary struct {
	Now time.Time
	// Waiting and Running jobs, those Finished within the last hour, and the Failed of them.
	Waiting, Running, Finished, Failed int
	// LongestWait of a job that waits.
	LongestWait time.Duration
	Machines    Machines
	Causes      []CauseGroup
	Pools       []Pool
	Clusters    []Cluster
	// Troubles are objects that are not ready.
	Troubles []Trouble
}

// Machines counts machines by what they do.
type Machines struct{ Starting, Idle, Busy, Standby, Ending, Failed int }

// Total is all of them.
func (m Machines) Total() int { return m.Starting + m.Idle + m.Busy + m.Standby + m.Ending + m.Failed }

// CauseGroup is jobs that wait for the same thing.
type CauseGroup struct {
	Namespace, Pool, Reason, Message string
	Jobs                             int
	// Oldest of the jobs, and how long it waits.
	Oldest string
	Wait   time.Duration
}

// Pool is a pool with what it has.
type Pool struct {
	*v1alpha1.RunnerPool

	Ready Ready
	// Shares of the maximum, in percent, for bars: they add up to 100 at most.
	BusyShare, IdleShare, StartingShare float64
}

// Idle and Starting machines of the pool.
func (p Pool) Idle() int32 { return p.Status.ReadyReplicas - p.Status.BusyReplicas }

// Starting machines are not ready yet.
func (p Pool) Starting() int32 { return p.Status.Replicas - p.Status.ReadyReplicas }

// Cluster is a hypervisor cluster with what it has.
type Cluster struct {
	*v1alpha1.HypervisorCluster

	Ready        Ready
	SetAside     int
	CPU, Memory  Usage
	OfflineNodes int
}

// Usage is how much of something is taken.
type Usage struct{ Used, Total int64 }

// Percent that is taken.
func (u Usage) Percent() float64 {
	if u.Total <= 0 {
		return 0
	}

	return min(100*float64(u.Used)/float64(u.Total), 100)
}

// Ready is an object's condition Ready.
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

// ReadyOf reads the condition.
func ReadyOf(conditions []metav1.Condition) Ready {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return Ready{metav1.ConditionUnknown, "NotSeen", "the operator has not looked at it yet: is it running?", time.Time{}}
	}

	return Ready{ready.Status, ready.Reason, ready.Message, ready.LastTransitionTime.Time}
}

// Summary sums up what there is now.
func (v *View) Summary(ctx context.Context, now time.Time) (*Summary, error) {
	var (
		pools     v1alpha1.RunnerPoolList
		claims    v1alpha1.MachineClaimList
		clusters  v1alpha1.HypervisorClusterList
		templates v1alpha1.HypervisorMachineTemplateList
		fleets    infrav1.HostFleetList
		all       v1alpha1.RunnerJobList
	)

	var failed []error
	for _, list := range []client.ObjectList{&pools, &claims, &clusters, &templates, &fleets, &all} {
		failed = append(failed, v.List(ctx, list))
	}

	if err := errors.Join(failed...); err != nil {
		return nil, err
	}

	out := &Summary{Now: now}
	out.jobs(all.Items)

	for i := range claims.Items {
		out.machine(&claims.Items[i])
	}

	for i := range pools.Items {
		pool := PoolOf(&pools.Items[i])
		out.Pools = append(out.Pools, pool)
		out.trouble(KindPool, &pools.Items[i], pool.Ready)
	}

	for i := range clusters.Items {
		cluster := ClusterOf(&clusters.Items[i])
		out.Clusters = append(out.Clusters, cluster)
		out.trouble(KindCluster, &clusters.Items[i], cluster.Ready)
	}

	for i := range templates.Items {
		out.trouble(KindTemplate, &templates.Items[i], ReadyOf(templates.Items[i].Status.Conditions))
	}

	for i := range fleets.Items {
		out.trouble(KindFleet, &fleets.Items[i], ReadyOf(fleets.Items[i].Status.Conditions))
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

// jobs counts jobs, and groups those that wait by what they wait for.
func (s *Summary) jobs(all []v1alpha1.RunnerJob) {
	groups := map[CauseGroup]*CauseGroup{}

	for i := range all {
		job := jobs.View(&all[i], s.Now)
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
		case all[i].Spec.CompletedAt != nil && s.Now.Sub(all[i].Spec.CompletedAt.Time) < recently:
			s.Finished++

			if Failed(job.Conclusion) {
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

// Failed says whether a conclusion, in the platforms' words, is that of a job that went wrong.
func Failed(conclusion string) bool {
	return slices.Contains([]string{"failure", "failed", "timed_out", "startup_failure", "broken"}, conclusion)
}

// machine counts a machine by what it does.
func (s *Summary) machine(claim *v1alpha1.MachineClaim) {
	times := cmp.Or(claim.Status.Times, &v1alpha1.MachineTimes{})

	switch {
	case claim.Status.Phase == v1alpha1.MachineClaimFailed:
		s.Machines.Failed++
	case !claim.DeletionTimestamp.IsZero() || times.Ended != nil:
		s.Machines.Ending++
	case claim.Spec.Standby:
		s.Machines.Standby++
	case times.JobStarted != nil:
		s.Machines.Busy++
	case times.Ready != nil:
		s.Machines.Idle++
	default:
		s.Machines.Starting++
	}
}

func (s *Summary) trouble(kind string, obj client.Object, ready Ready) {
	if ready.Status != metav1.ConditionTrue {
		s.Troubles = append(s.Troubles, Trouble{kind, obj.GetNamespace(), obj.GetName(), ready})
	}
}

// PoolOf reads a pool.
func PoolOf(pool *v1alpha1.RunnerPool) Pool {
	out := Pool{RunnerPool: pool, Ready: ReadyOf(pool.Status.Conditions)}

	// It could make machines, and nothing tells it of a job.
	heard := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionDemandSourcesReady)
	deaf := heard != nil && heard.Status == metav1.ConditionFalse && pool.Spec.Workload.Webhook == nil

	if deaf && out.Ready.Status == metav1.ConditionTrue {
		out.Ready = Ready{heard.Status, heard.Reason, heard.Message, heard.LastTransitionTime.Time}
	}

	whole := float64(max(pool.Spec.Scaling.MaxReplicas, pool.Status.Replicas, 1))
	out.BusyShare = 100 * float64(pool.Status.BusyReplicas) / whole
	out.IdleShare = 100 * float64(out.Idle()) / whole
	out.StartingShare = 100 * float64(out.Starting()) / whole

	return out
}

// ClusterOf reads a cluster.
func ClusterOf(cluster *v1alpha1.HypervisorCluster) Cluster {
	out := Cluster{HypervisorCluster: cluster, Ready: ReadyOf(cluster.Status.Conditions)}

	for i := range cluster.Status.Nodes {
		node := &cluster.Status.Nodes[i]
		cpu, memory := UsageOf(node)

		out.CPU = Usage{out.CPU.Used + cpu.Used, out.CPU.Total + cpu.Total}
		out.Memory = Usage{out.Memory.Used + memory.Used, out.Memory.Total + memory.Total}

		switch ready := ReadyOf(node.Conditions); {
		case !node.Online:
			out.OfflineNodes++
		case ready.Status == metav1.ConditionFalse:
			out.SetAside++
		}
	}

	return out
}

// UsageOf is what of a node is taken.
func UsageOf(node *v1alpha1.HypervisorNodeStatus) (cpu, memory Usage) {
	if node.Capacity == nil || node.Available == nil {
		return Usage{}, Usage{}
	}

	return Usage{node.Capacity.CPU - node.Available.CPU, node.Capacity.CPU},
		Usage{node.Capacity.Memory.Value() - node.Available.Memory.Value(), node.Capacity.Memory.Value()}
}
