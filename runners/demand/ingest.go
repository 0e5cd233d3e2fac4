// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// maxPolled bounds the repositories that one poll asks for.
const maxPolled = 100

// poll asks the platform once for jobs and records them.
func (s *Sources) poll(ctx context.Context, poller workload.Poller, pools []readPool) error {
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()

	repositories, err := s.repositories(ctx, pools)
	if err != nil {
		return err
	}

	// What came with an error holds all the same: one repository that can't be read does
	// not silence the others.
	jobs, asking := poller.Jobs(ctx, repositories)
	if asking != nil {
		asking = fmt.Errorf("ask for jobs: %w", asking)
	}

	return errors.Join(asking, s.ingest(ctx, pools, jobs))
}

// repositories are those that pools name and those that the ledger has jobs of.
func (s *Sources) repositories(ctx context.Context, pools []readPool) ([]string, error) {
	var out []string

	for _, pool := range pools {
		if d := pool.object.Spec.Demand; d != nil && d.Polling != nil {
			out = append(out, d.Polling.Repositories...)
		}
	}

	for _, namespace := range namespaces(pools) {
		var jobs v1alpha1.RunnerJobList
		if err := s.Client.List(ctx, &jobs, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list jobs: %w", err)
		}

		for i := range jobs.Items {
			job := &jobs.Items[i].Spec
			if slices.ContainsFunc(pools, func(p readPool) bool { return p.Namespace == namespace && p.covers(*job) }) {
				out = append(out, job.Repository)
			}
		}
	}

	slices.Sort(out)
	out = slices.Compact(out)

	return out[:min(len(out), maxPolled)], nil
}

func namespaces(pools []readPool) []string {
	var out []string
	for _, pool := range pools {
		out = append(out, pool.Namespace)
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// ingest records what a platform said of jobs in the namespaces whose pools cover them.
// News of jobs that are over is taken only for jobs that are known.
func (s *Sources) ingest(ctx context.Context, pools []readPool, jobs []workload.Job) error {
	ledger := &Ledger{Client: s.Client, Live: s.Live, Platforms: s.Platforms}
	now := s.Clock.Now()

	for _, job := range jobs {
		covering := slices.DeleteFunc(slices.Clone(pools), func(p readPool) bool { return !p.covers(job) })
		taken := func() bool { return slices.ContainsFunc(covering, func(p readPool) bool { return p.takes(job) }) }
		if s.Platforms.hosted(job) && !taken() {
			continue
		}

		for _, namespace := range namespaces(covering) {
			changed, err := ledger.ingest(ctx, namespace, job, now)
			if err != nil {
				return err
			}

			if changed {
				s.Metrics.repair(job.Platform, "heard")
			}
		}
	}

	return nil
}

// stream hands over what a platform's stream says, and begins anew when it breaks.
func (s *Sources) stream(ctx context.Context, at *source, streamer workload.Streamer) {
	pause := streamPause

	for ctx.Err() == nil {
		begun := s.Clock.Now()
		err := streamer.Stream(ctx, func() int { return capacity(at.now()) }, func(ctx context.Context, jobs []workload.Job) error {
			s.note(at.now(), nil)

			return s.ingest(ctx, at.now(), jobs)
		})

		if ctx.Err() != nil {
			return
		}

		if s.Clock.Since(begun) > maxStreamPause {
			pause = streamPause
		}

		if err != nil {
			s.Log.WarnContext(ctx, "stream of jobs broke", "pool", at.now()[0].Key().String(), "error", err, "again", pause.String())
		}

		s.note(at.now(), err)
		s.Metrics.source(at.now()[0].Runner.Platform, "stream", err)

		timer := s.Clock.NewTimer(pause)

		select {
		case <-ctx.Done():
			timer.Stop()

			return
		case <-timer.C():
		}

		pause = min(2*pause, maxStreamPause)
	}
}

// capacity is how many jobs the pools can work on at a time.
func capacity(pools []readPool) int {
	sum := 0

	for _, pool := range pools {
		if !pool.object.Spec.Paused {
			sum += pool.Max
		}
	}

	return sum
}

// ingest is record for news that nobody sent for: a job that is over and unknown stays so.
func (l *Ledger) ingest(ctx context.Context, namespace string, event workload.Job, now time.Time) (bool, error) {
	if event.State == v1alpha1.JobCompleted {
		var known v1alpha1.RunnerJob

		key := client.ObjectKey{Namespace: namespace, Name: l.Platforms.JobName(event)}

		err := l.Client.Get(ctx, key, &known)
		if apierrors.IsNotFound(err) { // the cache may be behind
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
