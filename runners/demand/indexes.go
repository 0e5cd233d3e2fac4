// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// IndexRunnerName is the field that MachineClaims are indexed by for the name of their
// runner, and RunnerJobs for the runner that has them.
const IndexRunnerName = "runnerName"

// Other fields that the cache is indexed by.
const (
	// indexClaimName of a claim is its name, and of a job that of the claim that it has.
	indexClaimName = "claimName"
	// indexJob of a claim are the jobs that it has or was made for.
	indexJob = "job"
	// indexPool of a claim is its pool, and indexTroubledPool that, too, where something is in
	// its machine's way.
	indexPool, indexTroubledPool = "pool", "troubledPool"
	// indexWaitingPool of a queued job is the pool that answers for it.
	indexWaitingPool = "waitingPool"
)

// jobIndexes and claimIndexes give what an object is found by, for each field.
func jobIndexes() map[string]func(*v1alpha1.RunnerJob) []string {
	return map[string]func(*v1alpha1.RunnerJob) []string{
		IndexRunnerName:  func(job *v1alpha1.RunnerJob) []string { return values(job.Spec.RunnerName) },
		indexClaimName:   func(job *v1alpha1.RunnerJob) []string { return values(job.Status.Claim) },
		indexWaitingPool: waitingPool,
	}
}

func claimIndexes() map[string]func(*v1alpha1.MachineClaim) []string {
	return map[string]func(*v1alpha1.MachineClaim) []string{
		IndexRunnerName:   runnerOfClaim,
		indexClaimName:    func(claim *v1alpha1.MachineClaim) []string { return values(claim.Name) },
		indexJob:          jobsOfClaim,
		indexPool:         poolOfClaim,
		indexTroubledPool: troubledPool,
	}
}

// addIndexes has jobs and claims found by what they have of each other, so that the work for
// one job does not grow with the number of others.
func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	return errors.Join(
		addTo(ctx, indexer, &v1alpha1.RunnerJob{}, jobIndexes()), addTo(ctx, indexer, &v1alpha1.MachineClaim{}, claimIndexes()),
	)
}

func addTo[T client.Object](ctx context.Context, indexer client.FieldIndexer, kind T, fields map[string]func(T) []string) error {
	for field, of := range fields {
		err := indexer.IndexField(ctx, kind, field, func(obj client.Object) []string {
			if typed, ok := obj.(T); ok {
				return of(typed)
			}

			return nil
		})
		if err != nil {
			return fmt.Errorf("index %T by %s: %w", kind, field, err)
		}
	}

	return nil
}

// values are those of the names that are there, each once.
func values(names ...string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)

	return slices.Compact(names)
}

func waitingPool(job *v1alpha1.RunnerJob) []string {
	if job.Spec.State != v1alpha1.JobQueued {
		return nil
	}

	return values(job.Status.Pool)
}

// runnerOfClaim is the name that the claim's runner will have, and has.
func runnerOfClaim(claim *v1alpha1.MachineClaim) []string {
	name := vmspec.RunnerName(claim)
	if info := claim.Status.BootstrapInfo; info != nil {
		return values(name, info.RunnerName)
	}

	return values(name)
}

func jobsOfClaim(claim *v1alpha1.MachineClaim) []string {
	info := claim.Status.BootstrapInfo
	if info == nil {
		return nil
	}

	return values(info.Job, info.BoundJob)
}

func poolOfClaim(claim *v1alpha1.MachineClaim) []string {
	if claim.Spec.RunnerPoolRef == nil {
		return nil
	}

	return values(claim.Spec.RunnerPoolRef.Name)
}

func troubledPool(claim *v1alpha1.MachineClaim) []string {
	if (trouble(claim) == Cause{}) && !failed(claim) {
		return nil
	}

	return poolOfClaim(claim)
}

// claimsBy reads the claims of the job's namespace that an index has under a value. They
// belong to the cache and must not be changed.
func (s *scope) claimsBy(ctx context.Context, field, value string) ([]v1alpha1.MachineClaim, error) {
	var claims v1alpha1.MachineClaimList

	err := s.Client.List(ctx, &claims, client.InNamespace(s.job.Namespace), client.MatchingFields{field: value},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list machine claims by %s: %w", field, err)
	}

	return claims.Items, nil
}

// jobsBy gives the same of jobs, none where the cache can't be read.
func (r *JobReconciler) jobsBy(ctx context.Context, namespace, field, value string) []v1alpha1.RunnerJob {
	if value == "" {
		return nil
	}

	var jobs v1alpha1.RunnerJobList

	err := r.Client.List(ctx, &jobs, client.InNamespace(namespace), client.MatchingFields{field: value},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil
	}

	return jobs.Items
}
