// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// maxDeletedMachines limits the deleted machines that are kept in memory.
const maxDeletedMachines = 2048

// deletedMachines keeps the last state of deleted claims in memory, because no cache holds a
// deleted claim. A job needs this state if the platform reports its runner late, or if the claim
// was deleted between two reconciles. The oldest entries are dropped first. A new process starts
// without entries; its jobs then have only what an earlier reconcile recorded.
type deletedMachines struct {
	mu       sync.Mutex
	machines map[types.NamespacedName]Machine
	order    []types.NamespacedName
	// ends holds the last state of machines whose claims are about to be deleted. It may be newer than the last state that
	// the API server had. A machine stays until add has its claim, which may be later than the cache has lost it.
	ends map[types.NamespacedName]Machine
}

// RecordEnd records the last state of a claim before it is deleted. The deletion itself is recorded when the cache
// has it.
func (r *JobReconciler) RecordEnd(claim *v1alpha1.MachineClaim) {
	g := &r.deletedMachines

	g.mu.Lock()
	defer g.mu.Unlock()

	if g.ends == nil || len(g.ends) >= maxDeletedMachines {
		g.ends = map[types.NamespacedName]Machine{} // these have only what the API server had
	}

	g.ends[client.ObjectKeyFromObject(claim)] = NewMachine(claim)
}

// add remembers the machine of a deleted claim, with the state that RecordEnd has stored for it, if any. If there are more
// than maxDeletedMachines, it forgets the oldest one.
func (g *deletedMachines) add(claim *v1alpha1.MachineClaim, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.machines == nil {
		g.machines = map[types.NamespacedName]Machine{}
	}

	key, machine := client.ObjectKeyFromObject(claim), NewMachine(claim)
	if end, ok := g.ends[key]; ok && end.UID == machine.UID {
		machine = end

		delete(g.ends, key)
	}

	machine.DeletedAt = now

	if _, isStored := g.machines[key]; !isStored {
		g.order = append(g.order, key)
	}

	g.machines[key] = machine

	if len(g.order) > maxDeletedMachines {
		delete(g.machines, g.order[0])
		g.order = g.order[1:]
	}
}

// find returns the machine that has the job, or else the last machine that was created for the job.
// It returns false if there is neither. The cache must not have the claim of the job.
func (g *deletedMachines) find(job *v1alpha1.RunnerJob, now time.Time) (Machine, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if job.Status.Claim != "" {
		key := types.NamespacedName{Namespace: job.Namespace, Name: job.Status.Claim}
		if end, ok := g.ends[key]; ok { // the cache has lost the claim, and add follows
			end.DeletedAt = now

			return end, true
		}

		machine, ok := g.machines[key]

		return machine, ok
	}

	var (
		bound Machine
		found bool
	)

	for _, key := range g.order {
		machine := g.machines[key]

		switch {
		case key.Namespace != job.Namespace:
		case hasJob(machine, job):
			return machine, true
		case machine.BoundJob == job.Name:
			bound, found = machine, true
		}
	}

	return bound, found
}

// newClaimHandler returns a handler that enqueues the jobs of a claim: the job that the claim's
// machine has, the job that the machine was created for, and the jobs that wait for the claim's
// pool.
func (r *JobReconciler) newClaimHandler() handler.Funcs {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

	enqueue := func(q queue, requests []reconcile.Request) {
		for _, request := range requests {
			q.Add(request)
		}
	}

	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if claim, ok := e.Object.(*v1alpha1.MachineClaim); ok {
				enqueue(q, r.findJobsOf(ctx, claim, findClaimCause(claim) != Cause{}))
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			previous, oldOK := e.ObjectOld.(*v1alpha1.MachineClaim)
			current, newOK := e.ObjectNew.(*v1alpha1.MachineClaim)

			if !oldOK || !newOK {
				return
			}

			// The message of a problem may change with each reconcile of the claim. A change of the
			// message alone enqueues no job.
			hasCauseChanged := findClaimCause(previous).Reason != findClaimCause(current).Reason ||
				hasFailed(previous) != hasFailed(current)
			if hasCauseChanged || hasProgressed(previous, current) {
				enqueue(q, r.findJobsOf(ctx, current, hasCauseChanged))
			}
		},
		// If the watch missed the deletion, the object is the last state in the cache, which is
		// also what a reconcile would have seen.
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if claim, ok := e.Object.(*v1alpha1.MachineClaim); ok {
				r.once.Do(r.setDefaults)
				r.deletedMachines.add(claim, r.Clock.Now())
				enqueue(q, r.findJobsOf(ctx, claim, hasFailed(claim)))
			}
		},
	}
}

// hasProgressed reports whether a field of the claim that timelines show has changed.
func hasProgressed(previous, current *v1alpha1.MachineClaim) bool {
	a, b := NewMachine(previous), NewMachine(current)
	areSet := func(t v1alpha1.MachineTimes) [6]bool {
		return [6]bool{t.Cloned != nil, t.Started != nil, t.Ready != nil, t.JobStarted != nil, t.Stopped != nil, t.Ended != nil}
	}

	return a.Runner != b.Runner || a.Job != b.Job || a.BoundJob != b.BoundJob || areSet(a.Times) != areSet(b.Times)
}

// findJobsOf returns requests for the jobs of a claim. If includesWaiting is true, it adds the jobs that
// wait for machines of the claim's pool.
func (r *JobReconciler) findJobsOf(ctx context.Context, claim *v1alpha1.MachineClaim, includesWaiting bool) []reconcile.Request {
	machine := NewMachine(claim)
	named := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: name}}
	}

	var requests []reconcile.Request

	for _, job := range []string{machine.BoundJob, machine.Job} {
		if job != "" {
			requests = append(requests, named(job))
		}
	}

	for _, lookup := range []struct{ field, value string }{{indexClaimName, claim.Name}, {IndexRunnerName, machine.Runner}} {
		for _, job := range r.listJobsBy(ctx, claim.Namespace, lookup.field, lookup.value) {
			if hasJob(machine, &job) {
				requests = append(requests, named(job.Name))
			}
		}
	}

	if pool := claim.PoolName(); pool != "" && includesWaiting {
		requests = append(requests, r.findJobsWaitingFor(ctx, claim.Namespace, pool)...)
	}

	return requests
}

// findJobsWaitingFor returns requests for the queued jobs that a pool serves.
func (r *JobReconciler) findJobsWaitingFor(ctx context.Context, namespace, pool string) []reconcile.Request {
	var requests []reconcile.Request

	for _, job := range r.listJobsBy(ctx, namespace, indexWaitingPool, pool) {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&job)})
	}

	return requests
}

// newPoolHandler returns a handler that enqueues the unfinished jobs of a namespace when a pool is
// created, changed or deleted, and the jobs that wait for a pool when the pool's status has another
// cause.
func (r *JobReconciler) newPoolHandler() handler.Funcs {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

	enqueue := func(q queue, requests []reconcile.Request) {
		for _, request := range requests {
			q.Add(request)
		}
	}

	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			enqueue(q, r.findUnfinishedJobs(ctx, e.Object))
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			enqueue(q, r.findUnfinishedJobs(ctx, e.Object))
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			previous, oldOK := e.ObjectOld.(*v1alpha1.RunnerPool)
			current, newOK := e.ObjectNew.(*v1alpha1.RunnerPool)

			switch {
			case !oldOK || !newOK:
			case previous.Generation != current.Generation || previous.DeletionTimestamp.IsZero() != current.DeletionTimestamp.IsZero():
				enqueue(q, r.findUnfinishedJobs(ctx, current))
			case !HasSameCause(previous, current):
				enqueue(q, r.findJobsWaitingFor(ctx, current.Namespace, current.Name))
			}
		},
	}
}
