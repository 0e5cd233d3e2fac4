// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// cached is a result that several callers share. Only one fetch runs at a time. A caller that waits for a
// running fetch takes its result if the result is young enough.
type cached[T any] struct {
	clock clock.PassiveClock
	fetch func(context.Context) (T, error)
	// token holds one value. The caller that has received the value may use the fields below.
	token     chan struct{}
	value     T
	fetchedAt time.Time
}

func newCached[T any](clk clock.PassiveClock, fetch func(context.Context) (T, error)) *cached[T] {
	c := &cached[T]{clock: clk, fetch: fetch, token: make(chan struct{}, 1)}
	c.token <- struct{}{}

	return c
}

// get returns a value whose fetch started at most maxAge ago. If maxAge is 0, the fetch started after the
// call of get. fetchedAt is the start of the fetch.
func (c *cached[T]) get(ctx context.Context, maxAge time.Duration) (value T, fetchedAt time.Time, err error) {
	oldest := c.clock.Now().Add(-maxAge)

	select {
	case <-c.token:
	case <-ctx.Done():
		return value, fetchedAt, ctx.Err()
	}

	defer func() { c.token <- struct{}{} }()

	// A value that was fetched at the same clock time may be older than this call. It does not count if
	// maxAge is 0.
	if c.fetchedAt.After(oldest) || maxAge > 0 && !c.fetchedAt.IsZero() && c.fetchedAt.Equal(oldest) {
		return c.value, c.fetchedAt, nil
	}

	startedAt := c.clock.Now()

	value, err = c.fetch(ctx)
	if err != nil {
		return value, fetchedAt, err
	}

	c.value, c.fetchedAt = value, startedAt

	return value, startedAt, nil
}
