// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Logs finds the logs of machines that were there before it was known whose they are; see
// report.Logs.
type Logs interface {
	// Adopt makes the log of a claim the job's, and gives the name of its RunnerLog; empty
	// if there is none. Pool is the claim's pool, or its template if it has none.
	Adopt(ctx context.Context, job *v1alpha1.RunnerJob, pool, claim string) (string, error)
}

// adoptLog looks for the log of the job's machine when the machine is found, and again
// when it is gone: later none comes. A job is no worse for want of its log.
func adoptLog(ctx context.Context, s *scope) step.Result {
	if s.Logs == nil || s.mine == nil || s.job.Status.Logs != "" {
		return step.Done()
	}

	ended := destroyed(s.job.Status.Timeline) && !destroyed(s.told)
	if s.job.Status.Claim == s.had && !ended {
		return step.Done()
	}

	keeper := s.mine.Keeper
	if keeper == "" {
		keeper = s.job.Status.Pool
	}

	if keeper == "" {
		return step.Done()
	}

	name, err := s.Logs.Adopt(ctx, s.job, keeper, s.mine.Name)
	if err != nil {
		log.FromContext(ctx).Error(err, "log of machine was not adopted", "claim", s.mine.Name)

		return step.Done()
	}

	s.job.Status.Logs = name

	return step.Done()
}
