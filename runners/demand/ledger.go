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

// AnnotationLastSeen on a RunnerJob is the time of the last change that an event made to the job
// (RFC 3339).
const AnnotationLastSeen = "hyperfleet.io/last-seen-at"

// maxWriteAttempts limits the attempts of one write that conflicts with other writers.
const maxWriteAttempts = 8

// Ledger writes jobs into RunnerJobs. All writers merge, so neither the order nor the number of
// events changes the result.
type Ledger struct {
	// Client may read from a cache. A stale job is only behind: an event that changes nothing about
	// the stale job changes nothing about a later version.
	Client client.Client
	// Live reads from the API server, after a write has shown that the cache is stale.
	Live client.Reader
	// Platforms gives the names of the RunnerJobs.
	Platforms Platforms
}

// Record merges an event into the RunnerJob of the event's job, and creates the RunnerJob if it is
// missing. It reports whether anything changed.
func (l *Ledger) Record(ctx context.Context, namespace string, event workload.Job, now time.Time) (bool, error) {
	key := client.ObjectKey{Namespace: namespace, Name: l.Platforms.JobName(event)}

	var reader client.Reader = l.Client

	for attempt := 1; ; attempt++ {
		changed, err := l.recordOnce(ctx, reader, key, event, now)

		stale := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
		if !stale || attempt == maxWriteAttempts || ctx.Err() != nil {
			if err != nil {
				return false, fmt.Errorf("record job %s of %s in namespace %s: %w", event.ID, event.Repository, namespace, err)
			}

			return changed, nil
		}

		reader = l.Live
	}
}

// recordOnce creates the job, or merges the event into it. It returns false if the event changes nothing.
func (l *Ledger) recordOnce(
	ctx context.Context, reader client.Reader, key client.ObjectKey, event workload.Job, now time.Time,
) (bool, error) {
	var object v1alpha1.RunnerJob

	switch err := reader.Get(ctx, key, &object); {
	case apierrors.IsNotFound(err):
		received := metav1.NewMicroTime(now)
		event.ReceivedAt = &received
		object = v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: event}
		updateMetadata(&object, now)

		return true, l.Client.Create(ctx, &object)
	case err != nil:
		return false, err
	}

	merged, changed := Merge(object.Spec, event)
	if !changed {
		return false, nil
	}

	object.Spec = merged
	updateMetadata(&object, now)

	return true, l.Client.Update(ctx, &object)
}

// updateMetadata sets AnnotationLastSeen, and copies the platform and the state into labels for
// selectors.
func updateMetadata(object *v1alpha1.RunnerJob, now time.Time) {
	metav1.SetMetaDataAnnotation(&object.ObjectMeta, AnnotationLastSeen, now.UTC().Format(time.RFC3339))

	if object.Labels == nil {
		object.Labels = map[string]string{}
	}

	object.Labels[v1alpha1.LabelPlatform] = object.Spec.Platform
	object.Labels[v1alpha1.LabelJobState] = string(object.Spec.State)
}
