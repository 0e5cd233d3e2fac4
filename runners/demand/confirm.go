// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/workload"
)

// confirm asks the platform about a job that nothing was heard of for a while: its
// webhook may be lost. It comes before the steps, since it may change the spec. That the
// platform can't be asked is no error: the job needs a machine all the same.
func (s *scope) confirm(ctx context.Context) error {
	if s.job.Spec.State == v1alpha1.JobCompleted {
		return nil
	}

	key := client.ObjectKeyFromObject(s.job)
	now := s.Clock.Now()

	if wait := s.next(key).Sub(now); wait > 0 {
		s.later(wait)

		return nil
	}

	providers := s.providers()
	if len(providers) == 0 {
		// No pool here reaches the job's repository; another pool wakes the job.
		return nil
	}

	if wait := s.turn(now); wait > 0 {
		s.later(wait)

		return nil
	}

	said, err := s.ask(ctx, providers)

	s.asked.note(key, now)
	s.later(s.next(key).Sub(now))

	if workload.Is(err, workload.NotFound) && lost(s.job, now) {
		said, err = s.lostJob(now), nil
	}

	if err != nil {
		s.said = s.unconfirmed(err)

		return nil
	}

	return s.record(ctx, said)
}

// labelSilence is what the questions about a job begin with that can't be matched before
// its labels are known.
const labelSilence = 2 * time.Second

// next is when the platform is asked about the job.
func (s *scope) next(key types.NamespacedName) time.Time {
	if s.job.Spec.LabelsUnknown {
		return s.asked.next(key, lastHeardOf(s.job).Add(-labelSilence), labelSilence)
	}

	return s.asked.next(key, lastHeardOf(s.job), s.Silence)
}

// How long a job can be in a state at GitHub, and an hour more
// (https://docs.github.com/actions/reference/limits): up to 48 hours in the queue, 5 days
// running, and 35 days for the whole workflow run, approvals included.
const (
	maxQueued  = 49 * time.Hour
	maxRunning = 5*24*time.Hour + time.Hour
	maxWaiting = 35*24*time.Hour + time.Hour
)

// conclusionLost is the conclusion of a job that its platform knows no longer.
const conclusionLost = "lost"

// lost tells whether a job that the platform does not know has been over for certain.
// Sooner it may only be hidden from the credentials.
func lost(job *v1alpha1.RunnerJob, now time.Time) bool {
	limit := map[v1alpha1.JobState]time.Duration{
		v1alpha1.JobQueued: maxQueued, v1alpha1.JobRunning: maxRunning, v1alpha1.JobWaiting: maxWaiting,
	}[job.Spec.State]

	return limit > 0 && now.Sub(lastHeardOf(job)) > limit
}

func (s *scope) lostJob(now time.Time) workload.Job {
	out := *s.job.Spec.DeepCopy()
	out.State, out.Conclusion, out.CompletedAt = v1alpha1.JobCompleted, conclusionLost, &metav1.Time{Time: now}

	return out
}

// confirmed reports what came of the question.
func confirmed(_ context.Context, s *scope) step.Result {
	if s.said == nil {
		return step.Done()
	}

	return step.Done().Also(ConditionConfirmed, s.said.Status, s.said.Reason, s.said.Message)
}

// lastHeardOf is when something was last heard of the job.
func lastHeardOf(job *v1alpha1.RunnerJob) time.Time {
	at := job.CreationTimestamp.Time
	if job.Spec.ReceivedAt != nil {
		at = job.Spec.ReceivedAt.Time
	}

	if moved, err := time.Parse(time.RFC3339, job.Annotations[AnnotationLastSeen]); err == nil {
		at = latest(at, &metav1.Time{Time: moved})
	}

	return latest(at, job.Spec.StartedAt)
}

// turn takes a turn from the limiter, or says how long to wait for one.
func (r *JobReconciler) turn(now time.Time) time.Duration {
	turn := r.limiter.ReserveN(now, 1)

	wait := turn.DelayFrom(now)
	if wait > 0 {
		turn.CancelAt(now)
	}

	return wait
}

// providers are the pools through which the job's platform can be asked about it: the one
// that answers for the job first.
func (s *scope) providers() []readPool {
	var first, rest []readPool

	for _, pool := range s.pools {
		switch {
		case pool.template == nil || !pool.covers(s.job.Spec):
		case pool.takes(s.job.Spec):
			first = append(first, pool)
		default:
			rest = append(rest, pool)
		}
	}

	return append(first, rest...)
}

// ask asks through one pool's provider. One question is enough: providers of one scope
// have like rights.
func (s *scope) ask(ctx context.Context, pools []readPool) (workload.Job, error) {
	pool := pools[0]

	provider, err := s.Providers.For(ctx, pool.template, pool.object.Spec.Workload)
	if err != nil {
		return workload.Job{}, err
	}

	return provider.Job(ctx, s.job.Spec.Repository, s.job.Spec.ID)
}

// record writes the platform's word into the ledger.
func (s *scope) record(ctx context.Context, said workload.Job) error {
	// The object is the one there is, whatever name the answer would give it.
	said.Platform, said.ID, said.URL = s.job.Spec.Platform, s.job.Spec.ID, s.job.Spec.URL
	ledger := &Ledger{Client: s.Client, Live: s.Live, Platforms: s.Platforms}
	before, key := s.job.Spec.State, client.ObjectKeyFromObject(s.job)

	changed, err := ledger.Record(ctx, s.job.Namespace, said, s.Clock.Now())
	if err != nil {
		return err
	}

	if changed {
		s.job = &v1alpha1.RunnerJob{}
		if err := s.Live.Get(ctx, key, s.job); err != nil {
			return fmt.Errorf("read job %s again: %w", key, err)
		}
	}

	result := "same"
	if s.job.Spec.State != before {
		result = "moved"
	}

	s.Metrics.repair(said.Platform, result)
	s.said = &metav1.Condition{
		Status: metav1.ConditionTrue, Reason: "Asked",
		Message: "the CI platform was asked for want of news and says that the job is " + string(said.State),
	}

	return nil
}

// unconfirmed says why the platform could not be asked.
func (s *scope) unconfirmed(err error) *metav1.Condition {
	reason, message, result := errclass.Reason(err, "Failed"), err.Error(), "failed"

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

	s.Metrics.repair(s.job.Spec.Platform, result)

	return &metav1.Condition{
		Status: metav1.ConditionFalse, Reason: reason, Message: "the CI platform was asked for want of news: " + message,
	}
}

// asked remembers what was asked about which job. It need not outlive the process: after
// a restart a silent job is asked about at once, within the limiter's bounds.
type asked struct {
	mu   sync.Mutex
	jobs map[types.NamespacedName]question
}

type question struct {
	count int
	at    time.Time
}

// next is when the platform is asked next: a silence after the last news, then twice,
// four times as long after each question.
func (a *asked) next(key types.NamespacedName, heard time.Time, silence time.Duration) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()

	last, ok := a.jobs[key]
	if !ok || heard.After(last.at) {
		delete(a.jobs, key)

		return heard.Add(silence)
	}

	wait := silence
	for range last.count {
		if wait *= 2; wait >= maxSilence {
			break
		}
	}

	return last.at.Add(min(wait, max(maxSilence, silence)))
}

func (a *asked) note(key types.NamespacedName, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.jobs == nil {
		a.jobs = map[types.NamespacedName]question{}
	}

	a.jobs[key] = question{count: a.jobs[key].count + 1, at: now}
}

func (a *asked) forget(key types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()

	delete(a.jobs, key)
}
