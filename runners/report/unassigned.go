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
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// minUnassignedAge is how long every log without a job is kept, because the platform may report the
	// job late, or only when the operator asks for it.
	minUnassignedAge = time.Hour
	// maxUnassignedPerPool is how many logs without a job each pool keeps longer.
	maxUnassignedPerPool = 32
	gcInterval           = 10 * time.Minute
	gcTimeout            = 5 * time.Minute
)

// LogGarbageCollector deletes logs that no job references: the logs of machines that never had a
// job, and the logs of jobs that another client deleted. It is a manager.Runnable that runs on the
// leader only.
type LogGarbageCollector struct {
	// Client reads jobs and claims, and deletes logs.
	Client client.Client
	// Live lists logs from the API server, because a cache would hold all of them.
	Live client.Reader
	// Namespaces are the namespaces of the operator. If it is empty, the operator serves all of them. Client has no jobs
	// of other namespaces, so their logs must not be touched.
	Namespaces []string
	// Retention of jobs. A log without a job is kept for at least minUnassignedAge, and after that not
	// longer than Retention.
	Retention time.Duration
	Clock     clock.WithTicker
	Log       *slog.Logger
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerlogs,verbs=list;delete
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs;machineclaims,verbs=get;list;watch

// NeedLeaderElection returns true: only the leader deletes logs.
func (s *LogGarbageCollector) NeedLeaderElection() bool { return true }

// Start deletes logs at an interval until the context ends.
func (s *LogGarbageCollector) Start(ctx context.Context) error {
	ticker := s.Clock.NewTicker(gcInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
			if err := s.Sweep(ctx); err != nil {
				s.Log.WarnContext(ctx, "could not delete logs without a job", "error", err)
			}
		}
	}
}

// Sweep deletes the logs without a job whose time is over. It stops at the first error, and the
// next Sweep retries.
func (s *LogGarbageCollector) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, gcTimeout)
	defer cancel()

	unassigned, err := s.listUnassigned(ctx)
	if err != nil || len(unassigned) == 0 {
		return err
	}

	// The jobs and claims are read after the logs, so that every job that references one of these
	// logs is in the result.
	referenced, err := s.listReferenced(ctx)
	if err != nil {
		return err
	}

	for _, log := range s.selectExpired(unassigned, referenced) {
		expired := &v1alpha1.RunnerLog{ObjectMeta: metav1.ObjectMeta{Namespace: log.Namespace, Name: log.Name}}

		err := s.Client.Delete(ctx, expired, client.Preconditions{UID: &log.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete log %s: %w", client.ObjectKeyFromObject(expired), err)
		}
	}

	return nil
}

// listUnassigned returns the metadata of the logs with the label LabelUnassignedLog.
func (s *LogGarbageCollector) listUnassigned(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	logs := &metav1.PartialObjectMetadataList{}
	logs.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("RunnerLogList"))

	var all []metav1.PartialObjectMetadata

	add := func(log *metav1.PartialObjectMetadata) { all = append(all, *log) }
	if err := watch.ForEachIn(ctx, s.Live, s.Namespaces, logs, add, client.HasLabels{v1alpha1.LabelUnassignedLog}); err != nil {
		return nil, fmt.Errorf("list logs: %w", err)
	}

	return all, nil
}

// listReferenced returns the names of the logs that a job references, and of the logs that a job
// may still reference: those of the runners of jobs and claims.
func (s *LogGarbageCollector) listReferenced(ctx context.Context) (map[types.NamespacedName]bool, error) {
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

// selectExpired returns the logs to delete. It keeps referenced logs and logs that are not older
// than minUnassignedAge. Of the others, it keeps the newest maxUnassignedPerPool of each pool up to the
// age of Retention; younger logs without a job count toward this number.
func (s *LogGarbageCollector) selectExpired(
	unassigned []metav1.PartialObjectMetadata, referenced map[types.NamespacedName]bool,
) []metav1.PartialObjectMetadata {
	var out []metav1.PartialObjectMetadata

	slices.SortFunc(unassigned, func(a, b metav1.PartialObjectMetadata) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) // the newest first
	})

	kept := map[types.NamespacedName]int{}

	for i := range unassigned {
		log := &unassigned[i]
		if referenced[client.ObjectKeyFromObject(log)] {
			continue
		}

		pool := types.NamespacedName{Namespace: log.Namespace, Name: log.Labels[v1alpha1.LabelUnassignedLog]}
		age := s.Clock.Since(log.CreationTimestamp.Time)

		if age <= minUnassignedAge || kept[pool] < maxUnassignedPerPool && age <= s.Retention {
			kept[pool]++

			continue
		}

		out = append(out, *log)
	}

	return out
}
