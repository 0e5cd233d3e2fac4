// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// maxPolledRepositories limits the repositories of one poll.
const maxPolledRepositories = 100

// pollJobs gets the jobs from the platform once and records them.
func (s *Sources) pollJobs(ctx context.Context, poller workload.Poller, pools []loadedPool) error {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()

	repositories, err := s.listRepositories(ctx, pools)
	if err != nil {
		return err
	}

	// The jobs that were returned together with an error are valid. An unreadable repository must
	// not hide the jobs of the others.
	jobs, pollErr := poller.ListJobs(ctx, repositories)
	if pollErr != nil {
		pollErr = fmt.Errorf("poll jobs: %w", pollErr)
	}

	return errors.Join(pollErr, s.ingest(ctx, pools, jobs, true))
}

// listRepositories returns the repositories that the pools name, and then the repositories of the jobs in
// the ledger, both sorted, at most maxPolledRepositories. Webhooks can name any number of repositories, and
// must not displace those that the pools name.
func (s *Sources) listRepositories(ctx context.Context, pools []loadedPool) ([]string, error) {
	var named, known []string

	for _, pool := range pools {
		if d := pool.object.Spec.Demand; d != nil && d.Polling != nil {
			named = append(named, d.Polling.Repositories...)
		}
	}

	for _, namespace := range listNamespaces(pools) {
		var jobs v1alpha1.RunnerJobList
		if err := s.Client.List(ctx, &jobs, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list jobs: %w", err)
		}

		for i := range jobs.Items {
			job := &jobs.Items[i].Spec
			if slices.ContainsFunc(pools, func(p loadedPool) bool { return p.Namespace == namespace && p.hasScopeOf(*job) }) {
				known = append(known, job.Repository)
			}
		}
	}

	slices.Sort(named)
	slices.Sort(known)

	named = slices.Compact(named)
	known = slices.DeleteFunc(slices.Compact(known), func(repository string) bool { return slices.Contains(named, repository) })
	out := slices.Concat(named, known)

	return out[:min(len(out), maxPolledRepositories)], nil
}

func listNamespaces(pools []loadedPool) []string {
	var out []string
	for _, pool := range pools {
		out = append(out, pool.Namespace)
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// ingest records jobs in every namespace whose pools have the job's scope. It skips a job for the
// platform's own machines that no pool can run, and a completed job that is not in the ledger. A job that the API
// server refuses, for example because of a quota, keeps no other job from being recorded. ingest then returns a
// refusedError. arePolled is whether the jobs are as the platform has them now.
func (s *Sources) ingest(ctx context.Context, pools []loadedPool, jobs []workload.Job, arePolled bool) error {
	ledger := &Ledger{Client: s.Client, Live: s.Live, Platforms: s.Platforms, arePolled: arePolled}
	now := s.Clock.Now()

	var refusal refusedError

	for _, job := range jobs {
		covering := slices.DeleteFunc(slices.Clone(pools), func(p loadedPool) bool { return !p.hasScopeOf(p.withEnterprise(job)) })
		canAnyRun := func() bool {
			return slices.ContainsFunc(covering, func(p loadedPool) bool { return p.canRun(p.withEnterprise(job)) })
		}

		if s.Platforms.isHosted(job) && !canAnyRun() {
			continue
		}

		refused, err := s.ingestOne(ctx, ledger, listEnterprises(covering), job, now)
		if err != nil {
			return err
		}

		if refused != nil {
			refusal.jobs = append(refusal.jobs, job)
		}

		if refusal.cause == nil {
			refusal.cause = refused
		}
	}

	if refusal.cause != nil {
		return &refusal
	}

	return nil
}

// ingestOne records a job in the namespaces, with the enterprise to which it belongs there. It returns the first refusal of
// the API server, after which it continues.
func (s *Sources) ingestOne(
	ctx context.Context, ledger *Ledger, enterprises map[string]string, job workload.Job, now time.Time,
) (refusal, err error) {
	for _, namespace := range slices.Sorted(maps.Keys(enterprises)) {
		job.Enterprise = enterprises[namespace]

		hasChanged, writeErr := ledger.ingest(ctx, namespace, job, now)
		if writeErr != nil && !apierrors.IsForbidden(writeErr) && !apierrors.IsInvalid(writeErr) {
			return nil, writeErr
		}

		if refusal == nil {
			refusal = writeErr
		}

		if hasChanged {
			s.Metrics.countStateCheck(job.Platform, "heard")
		}
	}

	return refusal, nil
}

// refusedError is the error for jobs that the API server refuses.
type refusedError struct {
	// cause is the error for the first of the jobs.
	cause error
	jobs  []workload.Job
}

func (e *refusedError) Error() string { return e.cause.Error() }

func (e *refusedError) Unwrap() error { return e.cause }

// refusedRetry is the time until the jobs of a stream that the API server has refused are recorded again, because no event
// tells when a quota allows them.
const refusedRetry = 30 * time.Second

// ingestStreamed records the jobs of a stream, and those that the API server refused before. The platform sends a job again
// if ingestStreamed returns an error, and sends no later ones until then. So refused jobs are no error, but wait in memory.
// If the process ends, the next one learns from the platform how many jobs wait.
func (s *Sources) ingestStreamed(ctx context.Context, src *source, jobs []workload.Job) error {
	src.streamed.Lock()
	defer src.streamed.Unlock()

	all := slices.Clone(jobs)

	for _, refused := range src.refused {
		if !slices.ContainsFunc(jobs, func(job workload.Job) bool { return job.ID == refused.ID }) {
			all = append(all, refused)
		}
	}

	pools := src.currentPools()
	err := s.ingest(ctx, pools, all, false)

	refusal, isRefused := errors.AsType[*refusedError](err)
	if err != nil && !isRefused {
		return err
	}

	if !isRefused {
		refusal = &refusedError{}
	} else if len(src.refused) == 0 {
		s.Log.WarnContext(ctx, "the API server refuses jobs of a stream, retrying", "pool", pools[0].Key().String(),
			"error", err, "retryAfter", refusedRetry.String())
	}

	src.refused = refusal.jobs
	s.recordResult(pools, err)

	return nil
}

// retryRefused records the refused jobs of a stream again and again until the context ends.
func (s *Sources) retryRefused(ctx context.Context, src *source) {
	ticker := s.Clock.NewTicker(refusedRetry)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}

		if !src.hasRefused() {
			continue
		}

		if err := s.ingestStreamed(ctx, src, nil); err != nil && ctx.Err() == nil {
			s.Log.WarnContext(ctx, "could not record refused jobs", "pool", src.currentPools()[0].Key().String(), "error", err)
		}
	}
}

// runStream records the jobs of a platform's stream until the context ends. If the stream breaks,
// it starts the stream again after a back-off.
func (s *Sources) runStream(ctx context.Context, src *source, streamer workload.Streamer) {
	backoff := minStreamBackoff

	for ctx.Err() == nil {
		start := s.Clock.Now()
		free := func() int { return sumCapacity(src.currentPools()) }
		err := streamer.StreamJobs(ctx, free, func(ctx context.Context, jobs []workload.Job) error {
			return s.ingestStreamed(ctx, src, jobs)
		})

		if ctx.Err() != nil {
			return
		}

		if s.Clock.Since(start) > maxStreamBackoff {
			backoff = minStreamBackoff
		}

		if err != nil {
			s.Log.WarnContext(ctx, "stream of jobs failed", "pool", src.currentPools()[0].Key().String(),
				"error", err, "retryAfter", backoff.String())
		}

		s.recordResult(src.currentPools(), err)
		s.Metrics.countSourceRequest(src.currentPools()[0].Runner.Platform, "stream", err)

		timer := s.Clock.NewTimer(backoff)

		select {
		case <-ctx.Done():
			timer.Stop()

			return
		case <-timer.C():
		}

		backoff = min(2*backoff, maxStreamBackoff)
	}
}

// sumCapacity returns how many jobs the pools can run at the same time. Paused pools count as zero.
func sumCapacity(pools []loadedPool) int {
	sum := 0

	for _, pool := range pools {
		if !pool.object.Spec.Paused {
			sum += pool.Max
		}
	}

	return sum
}

// ingest merges a job that the platform returned without a request for this job. It ignores a
// completed job that is not in the ledger. It reports whether the ledger changed.
func (l *Ledger) ingest(ctx context.Context, namespace string, event workload.Job, now time.Time) (bool, error) {
	if event.State == v1alpha1.JobCompleted {
		var known v1alpha1.RunnerJob

		key := client.ObjectKey{Namespace: namespace, Name: l.Platforms.JobName(event)}

		err := l.Client.Get(ctx, key, &known)
		if apierrors.IsNotFound(err) { // the cache may be stale
			err = l.Live.Get(ctx, key, &known)
		}

		if apierrors.IsNotFound(err) {
			return false, nil
		}

		if err != nil {
			return false, fmt.Errorf("read job %s: %w", event.ID, err)
		}
	}

	return l.Record(ctx, namespace, event, now)
}
