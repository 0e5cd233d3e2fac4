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
	// logAgain is when a log is looked for again that could not be.
	logAgain = 10 * time.Second
	// logWait is how long after its end a job whose machine nobody knows looks for its log.
	logWait = time.Hour
)

// Logs finds the logs of machines; see report.Logs.
type Logs interface {
	// Find gives the name of the RunnerLog of a runner's machine; empty if there is none.
	Find(ctx context.Context, namespace, runner string) (string, error)
	// Drop deletes the RunnerLog of a job that is gone.
	Drop(ctx context.Context, namespace, name string) error
}

// findLog looks for the log of the job's machine. A job is no worse for want of its log.
func findLog(ctx context.Context, s *scope) step.Result {
	runner := s.runner()
	if s.Logs == nil || s.job.Status.Logs != "" || runner == "" || !s.logMayBeThere() {
		return step.Done()
	}

	name, err := s.Logs.Find(ctx, s.job.Namespace, runner)
	if err != nil {
		log.FromContext(ctx).Error(err, "log of machine was not found", "runner", runner)
		s.later(logAgain)

		return step.Done()
	}

	s.job.Status.Logs = name

	return step.Done()
}

// runner is the name that the runner of the job's machine was given, by which its log is kept.
func (s *scope) runner() string {
	if s.mine != nil && s.mine.UID != "" {
		return workload.RunnerName(s.mine.Name, types.UID(s.mine.UID))
	}

	return s.job.Spec.RunnerName
}

// logMayBeThere tells whether it is time to look: when the machine is found, if it has ended,
// and when it is gone. Later none comes; only who was not there may have missed it.
func (s *scope) logMayBeThere() bool {
	if s.mine == nil {
		return s.job.Spec.State == v1alpha1.JobCompleted && s.Clock.Since(over(s.job)) < logWait
	}

	ended := !s.mine.Gone.IsZero() || s.mine.Times.Stopped != nil || s.mine.Times.Ended != nil

	return s.job.Status.Claim != s.had && ended || destroyed(s.job.Status.Timeline) && !destroyed(s.told)
}
