// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// logRetryInterval is the delay until the next attempt to find a log after an error.
	logRetryInterval = 10 * time.Second
	// logSearchPeriod is how long after a job's completion its log is searched if the job's machine
	// is unknown.
	logSearchPeriod = time.Hour
)

// Logs finds the logs of machines; see report.Logs.
type Logs interface {
	// Find returns the name of the RunnerLog of a runner's machine; empty if there is none.
	Find(ctx context.Context, namespace, runner string) (string, error)
	// Delete deletes the RunnerLog of a deleted job.
	Delete(ctx context.Context, namespace, name string) error
}

// findLog records the name of the log of the job's machine. A failed search only delays the record;
// it is no error of the job.
func findLog(ctx context.Context, s *scope) step.Result {
	runner := s.runnerName()
	if s.Logs == nil || s.job.Status.Logs != "" || runner == "" || !s.shouldFindLog() {
		return step.Done()
	}

	name, err := s.Logs.Find(ctx, s.job.Namespace, runner)
	if err != nil {
		log.FromContext(ctx).Error(err, "find log of machine", "runner", runner)
		s.requeueIn(logRetryInterval)

		return step.Done()
	}

	s.job.Status.Logs = name

	return step.Done()
}

// runnerName returns the name of the runner of the job's machine, which the name of the log is
// derived from.
func (s *scope) runnerName() string {
	if s.jobMachine != nil && s.jobMachine.UID != "" {
		return workload.RunnerName(s.jobMachine.Name, types.UID(s.jobMachine.UID))
	}

	return s.job.Spec.RunnerName
}

// shouldFindLog reports whether a search may succeed: when the job's machine becomes known and has
// ended, and when the machine is deleted. No log appears after that. If the machine is unknown, the
// search runs for logSearchPeriod after the job's completion, because the operator may have missed
// the machine's end.
func (s *scope) shouldFindLog() bool {
	if s.jobMachine == nil {
		return s.job.Spec.State == v1alpha1.JobCompleted && s.Clock.Since(completionTime(s.job)) < logSearchPeriod
	}

	hasEnded := !s.jobMachine.DeletedAt.IsZero() || s.jobMachine.Times.Stopped != nil || s.jobMachine.Times.Ended != nil

	return s.job.Status.Claim != s.claimBefore && hasEnded || isDestroyed(s.job.Status.Timeline) && !isDestroyed(s.timelineBefore)
}
