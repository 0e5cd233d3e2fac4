// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/workload"
)

// confirm asks the platform for the state of a job that has had no event for a while, because the
// job's webhook may be lost. It runs before the steps, because it may change the job's spec. If the
// call fails, confirm returns no error: the job still needs a machine.
func (s *scope) confirm(ctx context.Context) error {
	if s.job.Spec.State == v1alpha1.JobCompleted {
		return nil
	}

	key := client.ObjectKeyFromObject(s.job)
	now := s.Clock.Now()

	if wait := s.nextConfirmTime(key).Sub(now); wait > 0 {
		s.requeueIn(wait)

		return nil
	}

	pools := s.findConfirmPools()
	if len(pools) == 0 {
		// No pool of this namespace reaches the job's repository. A new pool enqueues the job.
		return nil
	}

	if wait := s.reserveCall(now); wait > 0 {
		s.requeueIn(wait)

		return nil
	}

	// One call is enough, because the providers of one scope have the same permissions.
	found, err := s.getJob(ctx, pools[0])

	s.confirmCalls.record(key, now)
	s.requeueIn(s.nextConfirmTime(key).Sub(now))

	if workload.Is(err, workload.NotFound) && (s.isDeleted(err, now) || isLost(s.job, now)) {
		found, err = s.newLostJob(now), nil
	}

	if err != nil {
		s.confirmation = s.newUnconfirmedCondition(err)

		return nil
	}

	return s.recordJob(ctx, found)
}

// unknownLabelsInterval is the first interval between calls about a job without known labels. Such
// a job matches no pool until the platform has returned its labels.
const unknownLabelsInterval = 2 * time.Second

// nextConfirmTime returns when to ask the platform about the job.
func (s *scope) nextConfirmTime(key types.NamespacedName) time.Time {
	if s.job.Spec.LabelsUnknown {
		return s.confirmCalls.nextTime(key, lastEventTime(s.job).Add(-unknownLabelsInterval), unknownLabelsInterval)
	}

	return s.confirmCalls.nextTime(key, lastEventTime(s.job), s.ConfirmAfter)
}

// The longest times that a job can be in a state at GitHub, plus one hour
// (https://docs.github.com/actions/reference/limits): up to 48 hours in the queue, 5 days running,
// and 35 days for the whole workflow run, including approvals.
const (
	maxQueued  = 49 * time.Hour
	maxRunning = 5*24*time.Hour + time.Hour
	maxWaiting = 35*24*time.Hour + time.Hour
)

// conclusionLost is the conclusion of a job that the platform no longer knows.
const conclusionLost = "lost"

// isLost reports whether a job that the platform does not find has certainly ended. Before this
// limit the credentials may only lack the permission to read the job.
func isLost(job *v1alpha1.RunnerJob, now time.Time) bool {
	limit := map[v1alpha1.JobState]time.Duration{
		v1alpha1.JobQueued: maxQueued, v1alpha1.JobRunning: maxRunning, v1alpha1.JobWaiting: maxWaiting,
	}[job.Spec.State]

	return limit > 0 && now.Sub(lastEventTime(job)) > limit
}

// isDeleted reports whether the platform has certainly deleted the job. A job that the platform has just
// created may not be readable yet.
func (s *scope) isDeleted(err error, now time.Time) bool {
	known, ok := errors.AsType[*workload.Error](err)

	return ok && known.Reason == workload.ReasonJobDeleted && now.Sub(lastEventTime(s.job)) >= s.ConfirmAfter
}

func (s *scope) newLostJob(now time.Time) workload.Job {
	out := *s.job.Spec.DeepCopy()
	out.State, out.Conclusion, out.CompletedAt = v1alpha1.JobCompleted, conclusionLost, &metav1.Time{Time: now}

	return out
}

// reportConfirmation sets the condition Confirmed if this reconcile called the platform.
func reportConfirmation(_ context.Context, s *scope) step.Result {
	if s.confirmation == nil {
		return step.Done()
	}

	return step.Done().WithCondition(ConditionConfirmed, s.confirmation.Status, s.confirmation.Reason, s.confirmation.Message)
}

// lastEventTime returns the time of the latest known event of the job.
func lastEventTime(job *v1alpha1.RunnerJob) time.Time {
	timestamp := job.CreationTimestamp.Time
	if job.Spec.ReceivedAt != nil {
		timestamp = job.Spec.ReceivedAt.Time
	}

	if lastSeen, err := time.Parse(time.RFC3339, job.Annotations[AnnotationLastSeen]); err == nil {
		timestamp = latestTime(timestamp, &metav1.Time{Time: lastSeen})
	}

	return latestTime(timestamp, job.Spec.StartedAt)
}

// reserveCall reserves a call from the rate limiter of the job's calls. If no call is free, it reserves nothing and
// returns the delay until one is.
func (s *scope) reserveCall(now time.Time) time.Duration {
	limiter := s.limiter
	if s.job.Spec.LabelsUnknown {
		limiter = s.labelLimiter // the job waits for its labels
	}

	reservation := limiter.ReserveN(now, 1)

	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}

	return wait
}

// findConfirmPools returns the pools whose credentials reach the job's repository. The pools that
// can run the job come first.
func (s *scope) findConfirmPools() []loadedPool {
	var first, rest []loadedPool

	for _, pool := range s.pools {
		switch {
		case pool.template == nil || !pool.hasScopeOf(s.job.Spec):
		case pool.canRun(s.job.Spec):
			first = append(first, pool)
		default:
			rest = append(rest, pool)
		}
	}

	return append(first, rest...)
}

// getJob gets the job from the platform with the credentials of the pool.
func (s *scope) getJob(ctx context.Context, pool loadedPool) (workload.Job, error) {
	provider, err := s.Providers.ProviderFor(ctx, pool.template, pool.object.Spec.Workload)
	if err != nil {
		return workload.Job{}, err
	}

	return provider.GetJob(ctx, s.job.Spec.Repository, s.job.Spec.ID)
}

// recordJob writes the job, as the platform returned it, into the ledger.
func (s *scope) recordJob(ctx context.Context, found workload.Job) error {
	found.Platform, found.ID, found.URL = s.job.Spec.Platform, s.job.Spec.ID, s.job.Spec.URL
	ledger := &Ledger{Client: s.Client, Live: s.Live, Platforms: s.Platforms}
	previous, wereLabelsUnknown, key := s.job.Spec.State, s.job.Spec.LabelsUnknown, client.ObjectKeyFromObject(s.job)

	hasChanged, err := ledger.Update(ctx, s.job, found, s.Clock.Now())
	if err != nil {
		return err
	}

	if hasChanged {
		s.job = &v1alpha1.RunnerJob{}
		if err := s.Live.Get(ctx, key, s.job); err != nil {
			return fmt.Errorf("read job %s again: %w", key, err)
		}
	}

	result := "same"
	if s.job.Spec.State != previous {
		result = "moved"
	}

	s.Metrics.countStateCheck(found.Platform, result)

	if wereLabelsUnknown && meta.FindStatusCondition(s.job.Status.Conditions, ConditionConfirmed) == nil {
		return nil // the job's webhook has arrived
	}

	s.confirmation = &metav1.Condition{
		Status: metav1.ConditionTrue, Reason: "PlatformQueried",
		Message: "the operator received no webhook and asked the CI platform: the job is " + string(found.State),
	}

	return nil
}

// newUnconfirmedCondition returns the condition Confirmed for a failed call to the platform.
func (s *scope) newUnconfirmedCondition(err error) *metav1.Condition {
	reason, message, result := errclass.ReasonOf(err, "Failed"), err.Error(), "failed"

	if known, ok := errors.AsType[*workload.Error](err); ok {
		reason, message = known.Reason, known.Message

		switch known.Kind {
		case workload.RateLimited:
			result = "rateLimited"
		case workload.NotFound:
			result = "notFound"
		case workload.Rejected, workload.Conflict, workload.RunnerBusy:
			result = "rejected"
		}
	}

	s.Metrics.countStateCheck(s.job.Spec.Platform, result)

	return &metav1.Condition{
		Status: metav1.ConditionFalse, Reason: reason,
		Message: "the operator received no webhook and could not ask the CI platform: " + message,
	}
}

// confirmCalls records the calls to the platform by job. The records need not outlive the process:
// after a restart the operator asks about a job without events at once, within the rate limit.
type confirmCalls struct {
	mu   sync.Mutex
	jobs map[types.NamespacedName]confirmCall
}

type confirmCall struct {
	count    int
	calledAt time.Time
}

// nextTime returns when to ask the platform about the job. The first call comes interval after the
// last event. After each call the interval doubles, up to maxConfirmInterval.
func (c *confirmCalls) nextTime(key types.NamespacedName, lastEvent time.Time, interval time.Duration) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()

	last, ok := c.jobs[key]
	if !ok || lastEvent.After(last.calledAt) {
		delete(c.jobs, key)

		return lastEvent.Add(interval)
	}

	wait := interval
	for range last.count {
		if wait *= 2; wait >= maxConfirmInterval {
			break
		}
	}

	return last.calledAt.Add(min(wait, max(maxConfirmInterval, interval)))
}

func (c *confirmCalls) record(key types.NamespacedName, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.jobs == nil {
		c.jobs = map[types.NamespacedName]confirmCall{}
	}

	c.jobs[key] = confirmCall{count: c.jobs[key].count + 1, calledAt: now}
}

func (c *confirmCalls) forget(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.jobs, key)
}
