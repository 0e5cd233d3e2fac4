// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// leaseTTL is how long a replica that is gone keeps the others waiting.
	leaseTTL   = 9 * time.Second
	leaseRenew = leaseTTL / 3
	// leaseMargin before its end nothing is sent any more.
	leaseMargin = time.Second
	// leaseSlack after its end others ask for it.
	leaseSlack = 100 * time.Millisecond
)

// lease says whether this replica is the one that sends.
type lease struct {
	s    *Sentinel
	name string

	mu    sync.Mutex
	until time.Time
	held  bool
}

// holds is true as long as no other replica can have the lease: it counts from before
// the request that renewed it, by this process's clock.
func (l *lease) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.s.clock.Now().Before(l.until.Add(-leaseMargin))
}

// run keeps the lease, or waits for it, until ctx ends.
func (l *lease) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := l.renew(ctx)

		if retry.Pause(ctx, l.s.clock, wait) != nil {
			return
		}
	}
}

// renew asks for the lease and says when to ask again.
func (l *lease) renew(ctx context.Context) time.Duration {
	try, cancel := context.WithTimeout(ctx, leaseRenew)
	defer cancel()

	begin := l.s.clock.Now()

	got, err := l.s.api.PutLease(try, l.name, l.s.holder, leaseTTL)

	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		l.s.meters.apiErrors.WithLabelValues(errorLease).Inc()
		l.s.log.Warn("renew the lease", "lease", l.name, "error", err)
		l.note(l.until)

		return leaseMargin
	case got.Holder == l.s.holder:
		l.note(begin.Add(leaseTTL))

		return leaseRenew
	default:
		l.note(time.Time{})

		left := time.Duration(got.ExpiresInSeconds * float64(time.Second))

		return min(leaseRenew, max(left, 0)+leaseSlack)
	}
}

// note keeps until when the lease holds, and says when this replica begins or ends to send.
func (l *lease) note(until time.Time) {
	l.mu.Lock()
	held := l.s.clock.Now().Before(until.Add(-leaseMargin))
	changed := held != l.held
	l.until, l.held = until, held
	l.mu.Unlock()

	if !changed {
		return
	}

	if !held {
		l.s.meters.leader.Set(0)
		l.s.log.Info("this replica stands by", "lease", l.name)

		return
	}

	l.s.meters.leader.Set(1)
	l.s.log.Info("this replica sends events", "lease", l.name)

	if l.s.anew {
		l.s.index.forget()
	}

	l.s.consider(l.s.index.ids()...)
}

// release gives the lease back, so that another replica need not wait for its end.
func (l *lease) release() {
	l.mu.Lock()
	held := l.held
	l.until, l.held = time.Time{}, false
	l.mu.Unlock()

	if !held {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), leaseRenew)
	defer cancel()

	if _, err := l.s.api.PutLease(ctx, l.name, l.s.holder, 0); err != nil {
		l.s.log.Warn("give the lease back: another replica takes over when it ends", "lease", l.name, "error", err)
	}
}
