// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

const (
	// assignmentAgeFactor is the ratio of the time for which an assignment is used to the duration of its computation.
	assignmentAgeFactor = 4
	// minAssignmentAge and maxAssignmentAge limit that time.
	minAssignmentAge, maxAssignmentAge = 20 * time.Millisecond, 500 * time.Millisecond
)

// assignments holds, by namespace, the jobs that are free for new machines. The claims of a namespace share one computation,
// because it reads all jobs, pools and claims of the namespace. The zero value is ready to use.
type assignments struct {
	mu          sync.Mutex
	byNamespace map[string]*assignment
	// askedAt is when claims found no job in a shared assignment, by their UIDs. An assignment that was computed after that
	// is not outdated for them.
	askedAt map[types.UID]time.Time
}

// assignment is the result of one computation.
type assignment struct {
	free freeJobs
	// computedAt is when the computation began. expiresAt is when it is repeated.
	computedAt, expiresAt time.Time
}

// freeJobs are the names of queued jobs that no claim has, in the order of demand.Assign.
type freeJobs map[jobKey][]string

// jobKey says which machines can run a job: those of a pool with a size.
type jobKey struct{ pool, size string }

// keyOf returns the key of the jobs that a claim's machine can run. The virtual pool of a claim without a pool has the
// claim's name.
func keyOf(claim *v1alpha1.MachineClaim) jobKey {
	return jobKey{cmp.Or(claim.PoolName(), claim.Name), demand.SizeKey(claim.Spec.Size)}
}

// outdatedError is an errNoJob if the next assignment may have a job.
type outdatedError struct {
	// retryAfter is the time until the next assignment.
	retryAfter time.Duration
}

func (e outdatedError) Error() string { return errNoJob.Error() }

func (e outdatedError) Unwrap() error { return errNoJob }

// bindNext binds the claim of the scope to the next free job, and returns the job. It returns an outdatedError if the shared
// assignment has none, and the next one may have one.
func (a *assignments) bindNext(ctx context.Context, s *scope, now time.Time) (*v1alpha1.RunnerJob, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	known := a.byNamespace[s.claim.Namespace]
	isShared := known != nil && now.Before(known.expiresAt)

	if !isShared {
		free, err := s.listFreeJobs(ctx)
		if err != nil {
			return nil, err
		}

		end := s.Clock.Now()
		age := min(max(assignmentAgeFactor*end.Sub(now), minAssignmentAge), maxAssignmentAge)
		known = &assignment{free: free, computedAt: now, expiresAt: end.Add(age)}
		a.store(s.claim.Namespace, known)
	}

	job, err := s.bindFirst(ctx, &known.free, keyOf(s.claim), now)

	askedAt, hasAsked := a.askedAt[s.claim.UID]
	isUpToDate := !isShared || hasAsked && known.computedAt.After(askedAt)

	if !errors.Is(err, errNoJob) || isUpToDate {
		delete(a.askedAt, s.claim.UID)

		return job, err
	}

	if !hasAsked {
		a.askedAt[s.claim.UID] = now
	}

	return nil, outdatedError{retryAfter: known.expiresAt.Sub(now)}
}

// store stores a new assignment, and forgets the claims that have asked long ago, because they were deleted.
func (a *assignments) store(namespace string, computed *assignment) {
	if a.byNamespace == nil {
		a.byNamespace, a.askedAt = map[string]*assignment{}, map[types.UID]time.Time{}
	}

	a.byNamespace[namespace] = computed

	maps.DeleteFunc(a.askedAt, func(_ types.UID, askedAt time.Time) bool { return computed.computedAt.Sub(askedAt) > maxCacheLag })
}

// listFreeJobs returns the free jobs of the claim's namespace. It reads only the cache.
func (s *scope) listFreeJobs(ctx context.Context) (freeJobs, error) {
	jobs, pools, err := s.listDemand(ctx)
	if err != nil {
		return nil, err
	}

	var claims v1alpha1.MachineClaimList
	if err := s.Client.List(ctx, &claims, client.InNamespace(s.claim.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list machine claims: %w", err)
	}

	boundJobs := map[string]bool{}

	for i := range claims.Items {
		if info := claims.Items[i].Status.BootstrapInfo; info != nil && info.BoundJob != "" && !isOver(&claims.Items[i]) {
			boundJobs[info.BoundJob] = true
		}
	}

	return findFreeJobs(jobs, pools, boundJobs), nil
}

// findFreeJobs returns the queued jobs that are assigned to pools and are not bound. It is pure.
func findFreeJobs(jobs []v1alpha1.RunnerJob, pools []demand.Pool, boundJobs map[string]bool) freeJobs {
	out := freeJobs{}

	demand.Assign(jobs, pools, func(job *v1alpha1.RunnerJob, pool demand.Pool) {
		if job.Spec.State != v1alpha1.JobQueued || boundJobs[job.Name] {
			return
		}

		size, _ := pool.ParseSize(job.Spec)
		key := jobKey{pool.Name, size.Key()}
		out[key] = append(out[key], job.Name)
	})

	return out
}
