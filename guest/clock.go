// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"time"
)

// Clock returns the current time and waits. Tests replace it.
type Clock interface {
	Now() time.Time
	// After returns a channel that receives one value after d.
	After(d time.Duration) <-chan time.Time
}

// wallClock is the machine's system clock.
type wallClock struct{}

func (wallClock) Now() time.Time                         { return time.Now() }
func (wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// newTimeout returns a channel that receives one value after d. It returns nil, which never receives, if d is
// not positive.
func newTimeout(c Clock, d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}

	return c.After(d)
}

// sleep waits for d. It returns the cause of ctx if ctx is done first.
func sleep(ctx context.Context, c Clock, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-c.After(d):
		return nil
	}
}
