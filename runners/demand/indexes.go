// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

// IndexRunnerName is the index field for the name of the runner that has a RunnerJob.
const IndexRunnerName = "runnerName"

// IndexWaitingTemplate is the index field for the template of a MachineClaim that has no machine yet.
const IndexWaitingTemplate = "waitingTemplate"

// indexUnfinished is the index field for RunnerJobs that are not completed. All of them have the value unfinishedValue.
const indexUnfinished, unfinishedValue = "unfinished", "true"

// Unfinished selects the RunnerJobs of the cache that are not completed. Completed jobs are kept for a day, so there may be
// many more of them.
func Unfinished() client.MatchingFields {
	return client.MatchingFields{indexUnfinished: unfinishedValue}
}

// The other index fields of the cache.
const (
	// indexForeignRunner is the index field for the runner names of claims whose runner's name does not contain
	// the claim's name. All other claims are found by their names: an index of ten thousand claims would need 9
	// MiB.
	indexForeignRunner = "foreignRunner"
	// indexClaimName is the index field for the claim of a job.
	indexClaimName = "claimName"
	// indexJob is the index field for the jobs that a claim's machine has or was created for.
	indexJob = "job"
	// indexPool is the index field for the pool of a claim. indexFailingPool is the
	// index field for the pool of a failing claim.
	indexPool, indexFailingPool = "pool", "failingPool"
	// indexWaitingPool is the index field for the pool that serves a queued job.
	indexWaitingPool = "waitingPool"
)

// jobIndexes and claimIndexes return the extractor of each index field.
func jobIndexes() map[string]func(*v1alpha1.RunnerJob) []string {
	return map[string]func(*v1alpha1.RunnerJob) []string{
		IndexRunnerName:  func(job *v1alpha1.RunnerJob) []string { return nonEmptyNames(job.Spec.RunnerName) },
		indexClaimName:   func(job *v1alpha1.RunnerJob) []string { return nonEmptyNames(job.Status.Claim) },
		indexWaitingPool: extractWaitingPool,
		indexUnfinished:  extractUnfinished,
	}
}

func claimIndexes() map[string]func(*v1alpha1.MachineClaim) []string {
	return map[string]func(*v1alpha1.MachineClaim) []string{
		indexForeignRunner: extractForeignRunners,

		indexJob:         extractJobs,
		indexPool:        extractPool,
		indexFailingPool: extractFailingPool,

		IndexWaitingTemplate: extractWaitingTemplate,
	}
}

// AddIndexes adds the index fields of jobs and claims to the cache, so that the work for one job
// does not grow with the number of jobs.
func AddIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	return errors.Join(
		addFieldIndexes(ctx, indexer, &v1alpha1.RunnerJob{}, jobIndexes()),
		addFieldIndexes(ctx, indexer, &v1alpha1.MachineClaim{}, claimIndexes()),
	)
}

func addFieldIndexes[T client.Object](
	ctx context.Context, indexer client.FieldIndexer, kind T, fields map[string]func(T) []string,
) error {
	for field, extract := range fields {
		err := indexer.IndexField(ctx, kind, field, func(obj client.Object) []string {
			if typed, ok := obj.(T); ok {
				return extract(typed)
			}

			return nil
		})
		if err != nil {
			return fmt.Errorf("index %T by %s: %w", kind, field, err)
		}
	}

	return nil
}

// nonEmptyNames returns the non-empty names, sorted and without duplicates.
func nonEmptyNames(names ...string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)

	return slices.Compact(names)
}

func extractWaitingPool(job *v1alpha1.RunnerJob) []string {
	if job.Spec.State != v1alpha1.JobQueued {
		return nil
	}

	return nonEmptyNames(job.PoolName())
}

func extractUnfinished(job *v1alpha1.RunnerJob) []string {
	if job.Spec.State == v1alpha1.JobCompleted {
		return nil
	}

	return []string{unfinishedValue}
}

// listRunnerNames returns the runner name that the claim determines and, if it is set, the
// runner name in the claim's status.
func listRunnerNames(claim *v1alpha1.MachineClaim) []string {
	name := vmspec.RunnerName(claim)
	if info := claim.Status.BootstrapInfo; info != nil {
		return nonEmptyNames(name, info.RunnerName)
	}

	return nonEmptyNames(name)
}

func extractForeignRunners(claim *v1alpha1.MachineClaim) []string {
	return slices.DeleteFunc(listRunnerNames(claim), func(name string) bool {
		return workload.ClaimOfRunner(name) == claim.Name
	})
}

// ListClaimsOfRunner returns the claims whose runner has the name. They belong to the cache and must not be changed.
func ListClaimsOfRunner(
	ctx context.Context, reader client.Reader, namespace, runner string,
) ([]v1alpha1.MachineClaim, error) {
	if runner == "" {
		return nil, nil
	}

	var out v1alpha1.MachineClaimList

	err := reader.List(ctx, &out, client.InNamespace(namespace), client.MatchingFields{indexForeignRunner: runner},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list MachineClaims of runner %s: %w", runner, err)
	}

	name := workload.ClaimOfRunner(runner)
	if name == "" {
		return out.Items, nil
	}

	var own v1alpha1.MachineClaim

	switch err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &own, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("get MachineClaim of runner %s: %w", runner, err)
	case slices.Contains(listRunnerNames(&own), runner):
		return append(out.Items, own), nil
	}

	return out.Items, nil
}

func extractJobs(claim *v1alpha1.MachineClaim) []string {
	info := claim.Status.BootstrapInfo
	if info == nil {
		return nil
	}

	return nonEmptyNames(info.Job, info.BoundJob)
}

func extractPool(claim *v1alpha1.MachineClaim) []string { return nonEmptyNames(claim.PoolName()) }

func extractWaitingTemplate(claim *v1alpha1.MachineClaim) []string {
	if claim.Status.VMRef != nil {
		return nil
	}

	return nonEmptyNames(claim.Spec.TemplateRef.Name)
}

func extractFailingPool(claim *v1alpha1.MachineClaim) []string {
	if (findClaimCause(claim) == Cause{}) && !hasFailed(claim) {
		return nil
	}

	return extractPool(claim)
}

// listClaimsBy returns the claims of the job's namespace with an index value. They belong to the
// cache and must not be changed.
func (s *scope) listClaimsBy(ctx context.Context, field, value string) ([]v1alpha1.MachineClaim, error) {
	var claims v1alpha1.MachineClaimList

	err := s.Client.List(ctx, &claims, client.InNamespace(s.job.Namespace), client.MatchingFields{field: value},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list MachineClaims by %s: %w", field, err)
	}

	return claims.Items, nil
}

// listJobsBy returns the jobs of a namespace with an index value. They belong to the cache and must
// not be changed. It returns nil if value is empty or the list fails.
func (r *JobReconciler) listJobsBy(ctx context.Context, namespace, field, value string) []v1alpha1.RunnerJob {
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
