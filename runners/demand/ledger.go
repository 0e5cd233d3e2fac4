// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"
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
	// Client may read from a cache. The cache may return an older version of a job. If an event changes nothing
	// in the older version, it changes nothing in the current version either.
	Client client.Client
	// Live reads from the API server, after a write has shown that the cache is stale.
	Live client.Reader
	// Platforms gives the names of the RunnerJobs.
	Platforms Platforms

	// arePolled is true if the events are answers of the platform about its jobs, which are not late.
	arePolled bool
}

// Record merges an event into the RunnerJob of the event's job, and creates the RunnerJob if it is
// missing. It reports whether anything changed. The secret of a webhook may prove only its repository, so an event does
// not change a job of another repository, even if it has the same ID.
func (l *Ledger) Record(ctx context.Context, namespace string, event workload.Job, now time.Time) (hasChanged bool, err error) {
	return l.record(ctx, client.ObjectKey{Namespace: namespace, Name: l.Platforms.JobName(event)}, getRepository(event), event, now)
}

// Update is Record for an event of a known RunnerJob, even if the event's fields give another name or repository.
func (l *Ledger) Update(
	ctx context.Context, known *v1alpha1.RunnerJob, event workload.Job, now time.Time,
) (hasChanged bool, err error) {
	return l.record(ctx, client.ObjectKeyFromObject(known), "", event, now)
}

// record merges an event into the RunnerJob with the key. If repository is not empty and this is a job of another one, it
// takes the RunnerJob with a hash of the repository in its name.
func (l *Ledger) record(
	ctx context.Context, key client.ObjectKey, repository string, event workload.Job, now time.Time,
) (bool, error) {
	var reader client.Reader = l.Client

	for attempt := 1; ; attempt++ {
		hasChanged, err := l.recordOnce(ctx, reader, key, repository, event, now)

		isStale := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
		if !isStale || attempt == maxWriteAttempts || ctx.Err() != nil {
			if err != nil {
				return false, fmt.Errorf("record job %s of %s in namespace %s: %w", event.ID, event.Repository, key.Namespace, err)
			}

			return hasChanged, nil
		}

		reader = l.Live
	}
}

// recordOnce creates the job, or merges the event into it. It returns false if the event changes nothing.
func (l *Ledger) recordOnce(
	ctx context.Context, reader client.Reader, key client.ObjectKey, repository string, event workload.Job, now time.Time,
) (bool, error) {
	var object v1alpha1.RunnerJob

	switch err := reader.Get(ctx, key, &object); {
	case apierrors.IsNotFound(err):
		return true, l.create(ctx, key, event, now)
	case err != nil:
		return false, err
	}

	if known := getRepository(object.Spec); repository != "" && known != "" && repository != known {
		key.Name = addHash(key.Name, repository)

		return l.recordOnce(ctx, reader, key, "", event, now)
	}

	if l.isRunAgain(&object, event, now) {
		return true, l.startOver(ctx, &object, event, now)
	}

	merged, hasChanged := Merge(object.Spec, event)
	if !hasChanged {
		return false, nil
	}

	areLabelsNew := object.Spec.LabelsUnknown && !merged.LabelsUnknown
	object.Spec = merged
	updateMetadata(&object, now)

	if areLabelsNew {
		l.setPool(ctx, &object) // as create does for a job whose labels are known
	}

	return true, l.Client.Update(ctx, &object)
}

// getRepository returns the job's repository, for comparisons.
func getRepository(job workload.Job) string { return strings.ToLower(job.Repository) }

// runAgainAfter is how long after the end of a job an event with an earlier state means that the job is run
// again. Before that, the event may be late. Polls find the jobs that are run again sooner.
const runAgainAfter = 15 * time.Second

// isRunAgain reports whether the event is the start of another run of a completed job that keeps its ID, of a completed job
// that the platform no longer knows to be completed, or of another job with the same ID.
func (l *Ledger) isRunAgain(job *v1alpha1.RunnerJob, event workload.Job, now time.Time) bool {
	platform, isKnown := l.Platforms[event.Platform]
	isWaiting := event.State == v1alpha1.JobQueued || event.State == v1alpha1.JobWaiting

	if !isKnown || !isWaiting || event.ID != job.Spec.ID {
		return false
	}

	if job.Spec.State == v1alpha1.JobCompleted {
		since := now.Sub(lastEventTime(job))
		hasRestarted := platform.Traits().ReusesJobIDs && since > runAgainAfter
		isSetBack := l.arePolled && since > setBackAfter

		if hasRestarted || isSetBack {
			return true
		}
	}

	return isQueuedAfterward(job.Spec, event)
}

// setBackAfter is how long after the end of a job a poll that finds it queued means that the platform has lost its end,
// because the platform was restored from a backup. Before that, the platform's list may be out of date.
const setBackAfter = 10 * time.Minute

// maxClockSkew is how much the clock of the operator, from which some times of jobs are, may differ from a platform's.
const maxClockSkew = time.Minute

// isQueuedAfterward reports whether the job of an event was queued after the known job had started or ended. A late event of
// the same job was queued before. Another job has the same ID if the platform was restored from a backup: it gives the IDs
// again that it has given since the backup.
func isQueuedAfterward(known, event workload.Job) bool {
	since := cmp.Or(known.CompletedAt, known.StartedAt)

	return rank(known.State) > rank(event.State) && since != nil && event.QueuedAt != nil &&
		event.QueuedAt.Sub(since.Time) > maxClockSkew
}

// startOver replaces the RunnerJob of a job that is run again, because its status is that of the first run.
// If the creation fails, the next event creates the RunnerJob.
func (l *Ledger) startOver(ctx context.Context, old *v1alpha1.RunnerJob, event workload.Job, now time.Time) error {
	err := l.Client.Delete(ctx, old, client.Preconditions{UID: &old.UID, ResourceVersion: &old.ResourceVersion})
	if err != nil {
		return err
	}

	return l.create(ctx, client.ObjectKeyFromObject(old), event, now)
}

func (l *Ledger) create(ctx context.Context, key client.ObjectKey, event workload.Job, now time.Time) error {
	received := metav1.NewMicroTime(now)
	event.ReceivedAt = &received
	object := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Spec: event}
	updateMetadata(object, now)
	l.setPool(ctx, object)

	return l.Client.Create(ctx, object)
}

// setPool sets the label that names the pool that serves a job that is received now. If there is none, or if the pools
// cannot be read, it sets no label. The job controller then writes the pool, or the reason why there is none, into the
// job's status.
func (l *Ledger) setPool(ctx context.Context, object *v1alpha1.RunnerJob) {
	pools, err := l.Platforms.ListPools(ctx, l.Client, object.Namespace)
	if err != nil {
		return
	}

	if pool, ok := Match(object.Spec, pools); ok && len(pool.Name) <= validation.LabelValueMaxLength {
		object.Labels[v1alpha1.LabelRunnerPool] = pool.Name
	}
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

// maxDirectWrites is how many webhooks are written one by one at the same time. Further webhooks are written in
// batches. A batch needs two additional writes.
const maxDirectWrites = 16

// namespaceLockCount is the number of locks that namespaces share. With so many, two namespaces rarely wait
// for each other.
const namespaceLockCount = 1024

// inbox writes the jobs of webhooks: each into its RunnerJob, or many into one RunnerJobBatch if
// webhooks arrive faster than the API server accepts writes.
type inbox struct {
	ledger      *Ledger
	clock       clock.PassiveClock
	directSlots chan struct{}

	mu sync.Mutex
	// openBatches holds, by namespace, the batches that still accept jobs. The first job of a batch
	// starts the write, which runs as soon as the previous batch is written.
	openBatches map[string]*batch
	// locks let one batch of a namespace be written at a time.
	locks keymutex.KeyMutex
}

// batch holds the jobs of a RunnerJobBatch that is not written yet.
type batch struct {
	jobs []workload.Job
	done chan struct{}
	err  error
}

func newInbox(ledger *Ledger, c clock.PassiveClock) *inbox {
	return &inbox{
		ledger: ledger, clock: c, directSlots: make(chan struct{}, maxDirectWrites),
		openBatches: map[string]*batch{}, locks: keymutex.NewHashed(namespaceLockCount),
	}
}

// recordAll writes the job into the ledger of each namespace, with the enterprise to which the job belongs there. A
// namespace that refuses the job, for example because of its quota, keeps it from no other namespace. A namespace that
// is being deleted needs no jobs.
func (b *inbox) recordAll(ctx context.Context, job workload.Job, enterprises map[string]string) error {
	var errs []error

	for _, namespace := range slices.Sorted(maps.Keys(enterprises)) {
		job.Enterprise = enterprises[namespace]

		err := b.record(ctx, namespace, job)
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

// record writes the job into the namespace's ledger or into a batch. If it returns nil, the job
// survives the end of this process.
func (b *inbox) record(ctx context.Context, namespace string, job workload.Job) error {
	select {
	case b.directSlots <- struct{}{}:
		defer func() { <-b.directSlots }()

		_, err := b.ledger.Record(ctx, namespace, job, b.clock.Now())

		return err
	default:
		return b.joinBatch(ctx, namespace, job)
	}
}

// joinBatch adds the job to the namespace's open batch and waits until the batch is written.
func (b *inbox) joinBatch(ctx context.Context, namespace string, job workload.Job) error {
	received := metav1.NewMicroTime(b.clock.Now())
	job.ReceivedAt = &received

	b.mu.Lock()

	current, ok := b.openBatches[namespace]
	if !ok || len(current.jobs) == v1alpha1.MaxBatch {
		current = &batch{done: make(chan struct{})}
		b.openBatches[namespace] = current

		// The batch is shared: the end of the first caller's context must not cancel the others'
		// write.
		go b.writeBatch(context.WithoutCancel(ctx), namespace, current) //nolint:contextcheck // see above
	}

	current.jobs = append(current.jobs, job)
	b.mu.Unlock()

	select {
	case <-current.done:
		return current.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeBatch waits until the previous batch of the namespace is written, and then writes this one. It
// accepts more jobs while it waits. A batch of one job is written as a RunnerJob.
func (b *inbox) writeBatch(ctx context.Context, namespace string, current *batch) {
	b.locks.LockKey(namespace)
	defer b.locks.UnlockKey(namespace) //nolint:errcheck // a hashed mutex returns no error

	b.mu.Lock()
	if b.openBatches[namespace] == current {
		delete(b.openBatches, namespace)
	}
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, receiveTimeout)
	defer cancel()

	defer close(current.done)

	if len(current.jobs) == 1 {
		job := current.jobs[0]
		_, current.err = b.ledger.Record(ctx, namespace, job, job.ReceivedAt.Time) // joinBatch has set ReceivedAt

		return
	}

	object := &v1alpha1.RunnerJobBatch{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "burst-"},
		Spec:       v1alpha1.RunnerJobBatchSpec{Jobs: current.jobs},
	}
	if err := b.ledger.Client.Create(ctx, object); err != nil {
		current.err = fmt.Errorf("create batch of %d jobs in namespace %s: %w", len(current.jobs), namespace, err)
	}
}

// receiveTime returns when the operator received a job of a batch. If the job has no time, it
// returns fallback.
func receiveTime(job workload.Job, fallback metav1.Time) time.Time {
	if job.ReceivedAt != nil {
		return job.ReceivedAt.Time
	}

	return fallback.Time
}
