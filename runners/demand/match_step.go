// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// matchPool records the pool that serves the job. A completed job keeps its pool. If it has no status yet, for example
// because the operator was not running, this is the pool in its label.
func matchPool(_ context.Context, s *scope) step.Result {
	if s.job.Spec.State == v1alpha1.JobCompleted {
		s.job.Status.Pool = s.job.PoolName()

		return step.Done().WithReason("Completed", "the job is completed")
	}

	pools := make([]Pool, 0, len(s.pools))
	for _, pool := range s.pools {
		if pool.object.DeletionTimestamp.IsZero() {
			pools = append(pools, pool.Pool)
		}
	}

	pool, ok := Match(s.job.Spec, pools)
	if !ok {
		s.job.Status.Pool = ""
		reason, message := Explain(s.job.Spec, pools)

		if s.isAwaitingLabels() {
			return step.Wait(0, reason, message).DeferWriteFor(step.ProgressWriteDelay)
		}

		return step.Stall(reason, message)
	}

	s.job.Status.Pool = pool.Name

	message := fmt.Sprintf("RunnerPool %s serves the job", pool.Name)
	if size, _ := pool.ParseSize(s.job.Spec); len(size.Labels) > 0 {
		message += ", with a machine of size " + strings.Join(size.Labels, ", ")
	}

	return step.Done().WithReason(ReasonMatched, message)
}

// isAwaitingLabels reports whether the operator is about to ask the platform for the labels of a job. It returns false if
// the platform did not tell them, or if that takes long.
func (s *scope) isAwaitingLabels() bool {
	hasAsked := s.confirmation != nil || meta.FindStatusCondition(s.job.Status.Conditions, ConditionConfirmed) != nil

	return s.job.Spec.LabelsUnknown && !hasAsked && s.Clock.Since(lastEventTime(s.job)) < step.ProgressWriteDelay
}

// findClaim records the claim whose runner took the job. The record stays after the claim is
// deleted.
func findClaim(ctx context.Context, s *scope) step.Result {
	if s.job.Spec.RunnerName == "" || s.job.Status.Claim != "" {
		return step.Done()
	}

	claims, err := ListClaimsOfRunner(ctx, s.Client, s.job.Namespace, s.job.Spec.RunnerName)
	if err != nil {
		return step.Fail(err)
	}

	for i := range claims {
		if info := claims[i].Status.BootstrapInfo; info != nil && info.RunnerName == s.job.Spec.RunnerName {
			s.job.Status.Claim = claims[i].Name
		}
	}

	return step.Done()
}
