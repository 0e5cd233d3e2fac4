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

// maxGone bounds how many machines are remembered after their end.
const maxGone = 2048

// gone remembers the last state of claims that are gone, for jobs that are told of their
// machine late or between two passes: a deleted claim is in no cache. The oldest are
// forgotten first. A new process begins without; its jobs then have what an earlier
// pass saw.
type gone struct {
	mu       sync.Mutex
	machines map[types.NamespacedName]Machine
	order    []types.NamespacedName
}

func (g *gone) add(claim *v1alpha1.MachineClaim, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if g.machines == nil {
		g.machines = map[types.NamespacedName]Machine{}
	}

	key := client.ObjectKeyFromObject(claim)
	machine := MachineOf(claim)
	machine.Gone = now

	if _, known := g.machines[key]; !known {
		g.order = append(g.order, key)
	}

	g.machines[key] = machine

	if len(g.order) > maxGone {
		delete(g.machines, g.order[0])
		g.order = g.order[1:]
	}
}

// find gives the machine that took the job, or else the last one that was made for it.
func (g *gone) find(job *v1alpha1.RunnerJob) (Machine, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()

	if job.Status.Claim != "" {
		machine, ok := g.machines[types.NamespacedName{Namespace: job.Namespace, Name: job.Status.Claim}]

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
		case took(machine, job):
			return machine, true
		case machine.BoundJob == job.Name:
			bound, found = machine, true
		}
	}

	return bound, found
}

// claimEvents wakes the jobs that a claim's news is about: the one that it has, the one
// that it was made for, and those that wait for it.
func (r *JobReconciler) claimEvents() handler.Funcs {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

	wake := func(q queue, requests []reconcile.Request) {
		for _, request := range requests {
			q.Add(request)
		}
	}

	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if claim, ok := e.Object.(*v1alpha1.MachineClaim); ok {
				wake(q, r.jobsOf(ctx, claim, trouble(claim) != Cause{}))
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok := e.ObjectOld.(*v1alpha1.MachineClaim)
			after, ok2 := e.ObjectNew.(*v1alpha1.MachineClaim)

			if !ok || !ok2 {
				return
			}

			// The words of a trouble may change with every look at it: they wait for the next pass.
			waiting := trouble(before).Reason != trouble(after).Reason || failed(before) != failed(after)
			if waiting || moved(before, after) {
				wake(q, r.jobsOf(ctx, after, waiting))
			}
		},
		// Of a claim whose deletion the watch missed, the object is the last state in the
		// cache: the same that a pass would have seen.
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) {
			if claim, ok := e.Object.(*v1alpha1.MachineClaim); ok {
				r.once.Do(r.defaults)
				r.gone.add(claim, r.Clock.Now())
				wake(q, r.jobsOf(ctx, claim, failed(claim)))
			}
		},
	}
}

// moved tells whether anything that a timeline tells of a claim has changed.
func moved(before, after *v1alpha1.MachineClaim) bool {
	a, b := MachineOf(before), MachineOf(after)
	set := func(t v1alpha1.MachineTimes) [6]bool {
		return [6]bool{t.Cloned != nil, t.Started != nil, t.Ready != nil, t.JobStarted != nil, t.Stopped != nil, t.Ended != nil}
	}

	return a.Runner != b.Runner || a.Job != b.Job || a.BoundJob != b.BoundJob || set(a.Times) != set(b.Times)
}

// jobsOf gives the jobs that a claim is about, and those that wait for machines of its
// pool if it changes what they wait for.
func (r *JobReconciler) jobsOf(ctx context.Context, claim *v1alpha1.MachineClaim, waiting bool) []reconcile.Request {
	machine := MachineOf(claim)
	named := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: name}}
	}

	var requests []reconcile.Request

	for _, job := range []string{machine.BoundJob, machine.Job} {
		if job != "" {
			requests = append(requests, named(job))
		}
	}

	for _, by := range []struct{ field, value string }{{indexClaimName, claim.Name}, {IndexRunnerName, machine.Runner}} {
		for _, job := range r.jobsBy(ctx, claim.Namespace, by.field, by.value) {
			if took(machine, &job) {
				requests = append(requests, named(job.Name))
			}
		}
	}

	if claim.Spec.RunnerPoolRef != nil && waiting {
		requests = append(requests, r.jobsWaitingFor(ctx, claim.Namespace, claim.Spec.RunnerPoolRef.Name)...)
	}

	return requests
}

// jobsWaitingFor gives the jobs that wait for machines of a pool.
func (r *JobReconciler) jobsWaitingFor(ctx context.Context, namespace, pool string) []reconcile.Request {
	var requests []reconcile.Request

	for _, job := range r.jobsBy(ctx, namespace, indexWaitingPool, pool) {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&job)})
	}

	return requests
}

// poolEvents wakes the live jobs of a namespace when a pool is made, changed or gone, and
// those that wait for it when its status names another cause.
func (r *JobReconciler) poolEvents() handler.Funcs {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

	wake := func(q queue, requests []reconcile.Request) {
		for _, request := range requests {
			q.Add(request)
		}
	}

	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { wake(q, r.jobsIn(ctx, e.Object)) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { wake(q, r.jobsIn(ctx, e.Object)) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			before, ok := e.ObjectOld.(*v1alpha1.RunnerPool)
			after, ok2 := e.ObjectNew.(*v1alpha1.RunnerPool)

			switch {
			case !ok || !ok2:
			case before.Generation != after.Generation || before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero():
				wake(q, r.jobsIn(ctx, after))
			case poolCause(before) != poolCause(after):
				wake(q, r.jobsWaitingFor(ctx, after.Namespace, after.Name))
			}
		},
	}
}
