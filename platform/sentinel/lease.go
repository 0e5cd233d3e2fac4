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
	// leaseTTL is how long the other replicas wait after the leader is gone.
	leaseTTL           = 9 * time.Second
	leaseRenewInterval = leaseTTL / 3
	// leaseMargin is the time before the end of the lease at which the leader stops sending.
	leaseMargin = time.Second
	// leaseSlack is the time after the end of the lease at which other replicas request it.
	leaseSlack = 100 * time.Millisecond
)

// lease decides whether this replica is the leader, which is the only replica that sends events.
type lease struct {
	sentinel *Sentinel
	name     string

	mu        sync.Mutex
	expiry    time.Time
	isLeading bool
}

// isHeld returns true as long as no other replica can have the lease. The time counts by this
// process's clock from before the request that renewed the lease.
func (l *lease) isHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.sentinel.clock.Now().Before(l.expiry.Add(-leaseMargin))
}

// run renews the lease, or waits for it, until ctx ends.
func (l *lease) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := l.renew(ctx)

		if retry.Sleep(ctx, l.sentinel.clock, wait) != nil {
			return
		}
	}
}

// renew requests the lease and returns the delay until the next request.
func (l *lease) renew(ctx context.Context) time.Duration {
	renewCtx, cancel := context.WithTimeout(ctx, leaseRenewInterval)
	defer cancel()

	start := l.sentinel.clock.Now()

	current, err := l.sentinel.api.PutLease(renewCtx, l.name, l.sentinel.holder, leaseTTL)

	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		l.sentinel.metrics.apiErrors.WithLabelValues(errorLease).Inc()
		l.sentinel.log.Warn("could not renew the lease", "lease", l.name, "error", err)
		l.setExpiry(l.expiry)

		return leaseMargin
	case current.Holder == l.sentinel.holder:
		l.setExpiry(start.Add(leaseTTL))

		return leaseRenewInterval
	default:
		l.setExpiry(time.Time{})

		remaining := time.Duration(current.ExpiresInSeconds * float64(time.Second))

		return min(leaseRenewInterval, max(remaining, 0)+leaseSlack)
	}
}

// setExpiry stores when the lease ends. If this replica becomes the leader or stops being the
// leader, it logs that and updates the metric. A new leader evaluates all resources.
func (l *lease) setExpiry(until time.Time) {
	l.mu.Lock()
	isHeld := l.sentinel.clock.Now().Before(until.Add(-leaseMargin))
	changed := isHeld != l.isLeading
	l.expiry, l.isLeading = until, isHeld
	l.mu.Unlock()

	if !changed {
		return
	}

	if !isHeld {
		l.sentinel.metrics.leader.Set(0)
		l.sentinel.log.Info("this replica is not the leader", "lease", l.name)

		return
	}

	l.sentinel.metrics.leader.Set(1)
	l.sentinel.log.Info("this replica is the leader and sends events", "lease", l.name)

	if l.sentinel.shouldResendAll {
		l.sentinel.index.resetAllSent()
	}

	l.sentinel.enqueueDue(l.sentinel.index.ids()...)
}

// release releases the lease, so that another replica can take over before the lease ends.
func (l *lease) release() {
	l.mu.Lock()
	isHeld := l.isLeading
	l.expiry, l.isLeading = time.Time{}, false
	l.mu.Unlock()

	if !isHeld {
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), leaseRenewInterval)
	defer cancel()

	if _, err := l.sentinel.api.PutLease(ctx, l.name, l.sentinel.holder, 0); err != nil {
		l.sentinel.log.Warn("could not release the lease: another replica takes over when it ends", "lease", l.name, "error", err)
	}
}
