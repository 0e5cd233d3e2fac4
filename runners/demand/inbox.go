// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// directWrites is how many webhooks are written one by one at a time. More than that is
// a burst, and is written in batches, each of which costs two writes more than its jobs.
const directWrites = 16

// inbox writes what webhooks say: each into its RunnerJob, or many into one
// RunnerJobBatch when they come faster than the API server takes them.
type inbox struct {
	ledger *Ledger
	clock  clock.PassiveClock
	direct chan struct{}

	mu sync.Mutex
	// open are the batches that may still grow, by namespace; the first to join one
	// writes it, as soon as the one before is written.
	open map[string]*batch
	// writing are the turns of namespaces that have a batch to write.
	writing map[string]*turn
}

// turn is had by one batch of a namespace at a time.
type turn struct {
	sync.Mutex

	users int
}

// batch is a RunnerJobBatch to be.
type batch struct {
	jobs []workload.Job
	done chan struct{}
	err  error
}

func newInbox(ledger *Ledger, c clock.PassiveClock) *inbox {
	return &inbox{
		ledger: ledger, clock: c, direct: make(chan struct{}, directWrites),
		open: map[string]*batch{}, writing: map[string]*turn{},
	}
}

// record keeps the job in the namespace. When it returns nil, the job is not lost with
// this process.
func (b *inbox) record(ctx context.Context, namespace string, job workload.Job) error {
	select {
	case b.direct <- struct{}{}:
		defer func() { <-b.direct }()

		_, err := b.ledger.Record(ctx, namespace, job, b.clock.Now())

		return err
	default:
		return b.join(ctx, namespace, job)
	}
}

// join adds the job to the namespace's open batch and waits until that is written.
func (b *inbox) join(ctx context.Context, namespace string, job workload.Job) error {
	received := metav1.NewMicroTime(b.clock.Now())
	job.ReceivedAt = &received

	b.mu.Lock()

	at, ok := b.open[namespace]
	if !ok || len(at.jobs) == v1alpha1.MaxBatch {
		at = &batch{done: make(chan struct{})}
		b.open[namespace] = at

		// It is not the caller's alone: who joins later must not lose by the first one's end.
		go b.write(context.WithoutCancel(ctx), namespace, at) //nolint:contextcheck // as said
	}

	at.jobs = append(at.jobs, job)
	b.mu.Unlock()

	select {
	case <-at.done:
		return at.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write writes a batch once the one before it is written; until then it grows. One of a single
// job is the job.
func (b *inbox) write(ctx context.Context, namespace string, at *batch) {
	defer b.turn(namespace)()

	b.mu.Lock()
	if b.open[namespace] == at {
		delete(b.open, namespace)
	}
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, receiveTimeout)
	defer cancel()

	defer close(at.done)

	if len(at.jobs) == 1 {
		_, at.err = b.ledger.Record(ctx, namespace, at.jobs[0], heardAt(at.jobs[0], metav1.Time{}))

		return
	}

	object := &v1alpha1.RunnerJobBatch{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "burst-"},
		Spec:       v1alpha1.RunnerJobBatchSpec{Jobs: at.jobs},
	}
	if err := b.ledger.Client.Create(ctx, object); err != nil {
		at.err = fmt.Errorf("write batch of %d jobs in namespace %s: %w", len(at.jobs), namespace, err)
	}
}

// turn waits for the namespace's turn; done gives it back. One that nobody waits for is forgotten.
func (b *inbox) turn(namespace string) (done func()) {
	b.mu.Lock()

	own, ok := b.writing[namespace]
	if !ok {
		own = &turn{}
		b.writing[namespace] = own
	}

	own.users++
	b.mu.Unlock()

	own.Lock()

	return func() {
		own.Unlock()

		b.mu.Lock()
		defer b.mu.Unlock()

		own.users--
		if own.users == 0 {
			delete(b.writing, namespace)
		}
	}
}

// heardAt is when a job of a batch was heard of.
func heardAt(job workload.Job, made metav1.Time) time.Time {
	if job.ReceivedAt != nil {
		return job.ReceivedAt.Time
	}

	return made.Time
}
