// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// batcher combines job requests that arrive while a call is in flight into the next call, because
// the Stacks API accepts many jobs per call but few calls per second. A request that finds no call
// in flight is sent at once.
type batcher[T any] struct {
	// call returns its results by job id. Each result is valid for lifetimeSeconds.
	call func(ctx context.Context, ids []string, lifetimeSeconds int64) (map[string]T, error)
	// slot has capacity 1 and is full while a call is in flight.
	slot chan struct{}

	mu      sync.Mutex
	pending []*batchRequest[T]
}

// batchRequest is one caller's request for one job. result, found and err are set before done is
// closed.
type batchRequest[T any] struct {
	id              string
	lifetimeSeconds int64
	done            chan struct{}
	result          T
	found           bool
	err             error
}

func newBatcher[T any](call func(ctx context.Context, ids []string, lifetimeSeconds int64) (map[string]T, error)) *batcher[T] {
	return &batcher[T]{call: call, slot: make(chan struct{}, 1)}
}

// get returns the call's result for the job. found is false if the call returned none.
func (b *batcher[T]) get(ctx context.Context, id string, lifetimeSeconds int64) (result T, found bool, err error) {
	request := &batchRequest[T]{id: id, lifetimeSeconds: lifetimeSeconds, done: make(chan struct{})}

	b.mu.Lock()
	b.pending = append(b.pending, request)
	b.mu.Unlock()

	// Either the batch of another caller contains the request, or this caller gets the slot and sends a batch.
	for {
		select {
		case <-request.done:
			return request.result, request.found, request.err
		case b.slot <- struct{}{}:
			b.sendBatch(ctx)
			<-b.slot
		case <-ctx.Done():
			b.mu.Lock()
			b.pending = slices.DeleteFunc(b.pending, func(pending *batchRequest[T]) bool { return pending == request })
			b.mu.Unlock()

			return request.result, false, fmt.Errorf("wait for job %s: %w", id, ctx.Err())
		}
	}
}

// sendBatch makes one call for all pending requests that have the same lifetime as the first one.
// The call continues if the caller's context ends. Each attempt of the call has the client's
// timeout.
func (b *batcher[T]) sendBatch(ctx context.Context) {
	batch := b.takeBatch()
	if len(batch) == 0 {
		return // another caller has sent the requests
	}

	ids := make([]string, 0, len(batch))
	for _, request := range batch {
		ids = append(ids, request.id)
	}

	slices.Sort(ids)

	results, err := b.call(context.WithoutCancel(ctx), slices.Compact(ids), batch[0].lifetimeSeconds)
	for _, request := range batch {
		request.result, request.found = results[request.id]
		request.err = err
		close(request.done)
	}
}

// takeBatch removes the next batch from the pending requests and returns it.
func (b *batcher[T]) takeBatch() []*batchRequest[T] {
	b.mu.Lock()
	defer b.mu.Unlock()

	var batch []*batchRequest[T]

	b.pending = slices.DeleteFunc(b.pending, func(request *batchRequest[T]) bool {
		isFirst := len(batch) == 0
		isInBatch := isFirst || len(batch) < maxBatchSize && request.lifetimeSeconds == batch[0].lifetimeSeconds

		if isInBatch {
			batch = append(batch, request)
		}

		return isInBatch
	})

	return batch
}
