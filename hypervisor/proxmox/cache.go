// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// cached is an answer that serves many: one fetch at a time, and who comes while it is
// under way takes its result if that is young enough.
type cached[T any] struct {
	clock clock.PassiveClock
	fetch func(context.Context) (T, error)
	// turn holds one token; whoever has it may touch what is below.
	turn  chan struct{}
	value T
	at    time.Time
}

func newCached[T any](clk clock.PassiveClock, fetch func(context.Context) (T, error)) *cached[T] {
	c := &cached[T]{clock: clk, fetch: fetch, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}

	return c
}

// get gives a value that was asked for no longer than maxAge ago; 0 asks anew. at is
// when it was asked for.
func (c *cached[T]) get(ctx context.Context, maxAge time.Duration) (value T, at time.Time, err error) {
	wanted := c.clock.Now().Add(-maxAge)

	select {
	case <-c.turn:
	case <-ctx.Done():
		return value, at, ctx.Err()
	}

	defer func() { c.turn <- struct{}{} }()

	// What was asked for at the same moment may have been asked for before.
	if c.at.After(wanted) || maxAge > 0 && !c.at.IsZero() && c.at.Equal(wanted) {
		return c.value, c.at, nil
	}

	asked := c.clock.Now()

	value, err = c.fetch(ctx)
	if err != nil {
		return value, at, err
	}

	c.value, c.at = value, asked

	return value, asked, nil
}
