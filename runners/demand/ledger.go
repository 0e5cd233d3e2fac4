// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// AnnotationLastSeen on a RunnerJob is when something new was last heard of it (RFC 3339).
const AnnotationLastSeen = "hyperfleet.io/last-seen-at"

// maxWrites bounds the tries of one write that others get in the way of.
const maxWrites = 8

// Ledger writes what is heard of jobs. All writers merge, so it does not matter who comes
// first, nor how often.
type Ledger struct {
	// Client may read from a cache: a stale job is only ever behind, and what changes
	// nothing about it changes nothing about its successor.
	Client client.Client
	// Live reads from the API server itself, once the cache has been found to be behind.
	Live client.Reader
	// Platforms name the RunnerJobs of their jobs.
	Platforms Platforms
}

// Record merges an event into the RunnerJob of its job, which it makes if there is none,
// and tells whether anything changed.
func (l *Ledger) Record(ctx context.Context, namespace string, event workload.Job, now time.Time) (bool, error) {
	key := client.ObjectKey{Namespace: namespace, Name: l.Platforms.JobName(event)}

	var reader client.Reader = l.Client

	for try := 1; ; try++ {
		changed, err := l.try(ctx, reader, key, event, now)

		behind := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
		if !behind || try == maxWrites || ctx.Err() != nil {
			if err != nil {
				return false, fmt.Errorf("record job %s of %s in namespace %s: %w", event.ID, event.Repository, namespace, err)
			}

			return changed, nil
		}

		reader = l.Live
	}
}

func (l *Ledger) try(
	ctx context.Context, reader client.Reader, key client.ObjectKey, event workload.Job, now time.Time,
) (bool, error) {
	var object v1alpha1.RunnerJob

	switch err := reader.Get(ctx, key, &object); {
	case apierrors.IsNotFound(err):
		received := metav1.NewMicroTime(now)
		event.ReceivedAt = &received
		object = v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: event}
		mark(&object, now)

		return true, l.Client.Create(ctx, &object)
	case err != nil:
		return false, err
	}

	merged, changed := Merge(object.Spec, event)
	if !changed {
		return false, nil
	}

	object.Spec = merged
	mark(&object, now)

	return true, l.Client.Update(ctx, &object)
}

// mark notes when something was heard, and mirrors what people select jobs by in labels.
func mark(object *v1alpha1.RunnerJob, now time.Time) {
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, AnnotationLastSeen, now.UTC().Format(time.RFC3339))

	if object.Labels == nil {
		object.Labels = map[string]string{}
	}

	object.Labels[v1alpha1.LabelPlatform] = object.Spec.Platform
	object.Labels[v1alpha1.LabelJobState] = string(object.Spec.State)
}
