// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// ShelfAge is how long every log waits for its job to be told: a platform's word may be
	// late, or lost until it is asked.
	ShelfAge = time.Hour
	// shelfKept is how many logs of machines without a job each pool keeps longer.
	shelfKept     = 32
	shelfInterval = 10 * time.Minute
	shelfTimeout  = 5 * time.Minute
	shelfPage     = 500
)

// Shelf removes logs that no job asks for: those of machines that never had one, and what is
// left of jobs that somebody else deleted. It is a manager.Runnable that runs on the leader only.
type Shelf struct {
	// Client reads jobs and claims, and deletes.
	Client client.Client
	// Live lists logs: a cache would hold all there are.
	Live client.Reader
	// Retention of jobs. No log without one is kept longer, nor less than ShelfAge.
	Retention time.Duration
	Clock     clock.WithTicker
	Log       *slog.Logger
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerlogs,verbs=list;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs;machineclaims,verbs=get;list;watch

// NeedLeaderElection says that only the leader removes logs.
func (s *Shelf) NeedLeaderElection() bool { return true }

// Start removes logs until the context ends.
func (s *Shelf) Start(ctx context.Context) error {
	ticker := s.Clock.NewTicker(shelfInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			if err := s.Sweep(ctx); err != nil {
				s.Log.WarnContext(ctx, "logs without a job were not removed", "error", err)
			}
		}
	}
}

// Sweep makes one pass over all logs on shelves. What can't be removed now is tried again with
// the next.
func (s *Shelf) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shelfTimeout)
	defer cancel()

	shelved, err := s.list(ctx)
	if err != nil || len(shelved) == 0 {
		return err
	}

	// They are read after the logs: whoever asks for one of these is there by now.
	asked, err := s.asked(ctx)
	if err != nil {
		return err
	}

	for _, log := range s.surplus(shelved, asked) {
		gone := &v1alpha1.RunnerLog{ObjectMeta: metav1.ObjectMeta{Namespace: log.Namespace, Name: log.Name}}

		err := s.Client.Delete(ctx, gone, client.Preconditions{UID: &log.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete log %s: %w", client.ObjectKeyFromObject(gone), err)
		}
	}

	return nil
}

// list reads what logs are on shelves, without their texts.
func (s *Shelf) list(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata

	page := &metav1.PartialObjectMetadataList{}

	for {
		again := page.Continue
		page = &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("RunnerLogList"))

		err := s.Live.List(ctx, page, client.HasLabels{v1alpha1.LabelLogShelf}, client.Limit(shelfPage), client.Continue(again))
		if err != nil {
			return nil, fmt.Errorf("list logs: %w", err)
		}

		if all = append(all, page.Items...); page.Continue == "" {
			return all, nil
		}
	}
}

// asked are the names of the logs that a job has, or may have yet.
func (s *Shelf) asked(ctx context.Context) (map[types.NamespacedName]bool, error) {
	var (
		jobs   v1alpha1.RunnerJobList
		claims v1alpha1.MachineClaimList
	)

	if err := s.Client.List(ctx, &jobs, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list jobs: %w", err)
	}

	if err := s.Client.List(ctx, &claims, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}

	out := make(map[types.NamespacedName]bool, len(jobs.Items)+len(claims.Items))

	for i := range jobs.Items {
		job := &jobs.Items[i]
		out[types.NamespacedName{Namespace: job.Namespace, Name: job.Status.Logs}] = true
		out[types.NamespacedName{Namespace: job.Namespace, Name: LogName(job.Spec.RunnerName)}] = true
	}

	for i := range claims.Items {
		claim := &claims.Items[i]
		out[types.NamespacedName{Namespace: claim.Namespace, Name: LogName(workload.RunnerName(claim.Name, claim.UID))}] = true
	}

	return out, nil
}

// surplus are the logs to remove: of those that nobody asks for, the ones that are older than
// any job's, and of the ones that have waited long enough all but the newest of each pool.
func (s *Shelf) surplus(
	shelved []metav1.PartialObjectMetadata, asked map[types.NamespacedName]bool,
) []metav1.PartialObjectMetadata {
	var out []metav1.PartialObjectMetadata

	slices.SortFunc(shelved, func(a, b metav1.PartialObjectMetadata) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) // the newest first
	})

	kept := map[types.NamespacedName]int{}

	for i := range shelved {
		log := &shelved[i]
		if asked[client.ObjectKeyFromObject(log)] {
			continue
		}

		pool := types.NamespacedName{Namespace: log.Namespace, Name: log.Labels[v1alpha1.LabelLogShelf]}
		age := s.Clock.Since(log.CreationTimestamp.Time)

		if age <= ShelfAge || kept[pool] < shelfKept && age <= s.Retention {
			kept[pool]++

			continue
		}

		out = append(out, *log)
	}

	return out
}
