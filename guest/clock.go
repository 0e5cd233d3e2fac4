// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"time"
)

// Clock is the time as the service sees it.
type Clock interface {
	Now() time.Time
	// After sends once when d has passed.
	After(d time.Duration) <-chan time.Time
}

// wallClock is the machine's own time.
type wallClock struct{}

func (wallClock) Now() time.Time                         { return time.Now() }
func (wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// afterOrNever is a channel for a timeout whose zero means never.
func afterOrNever(c Clock, d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}

	return c.After(d)
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, c Clock, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.After(d):
		return nil
	}
}
