// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// TTL is how long the other replicas wait after the leader is gone.
	TTL           = 9 * time.Second
	renewInterval = TTL / 3
	// margin is the time before the end of the lease at which the process stops being the leader.
	margin = time.Second
	// slack is the time after the end of the lease at which other replicas request it.
	slack = 100 * time.Millisecond
)

var errUnknown = errors.New("the fleet API does not say which replica is the leader")

// fingerprintSeparator separates the name of a process from its fingerprint in the holder of a lease.
const fingerprintSeparator = "#"

// API puts leases. It is a *client.Client.
type API interface {
	PutLease(ctx context.Context, name, holder string, ttl time.Duration) (*openapi.Lease, error)
}

// Options configure New. API and Name are required. Run calls the functions.
type Options struct {
	API  API
	Name string
	// Fingerprint, if set, identifies what the replicas do, such as a digest of their configuration. A process with
	// another one is no replica (Conflict).
	Fingerprint string
	// Log is the logger. Default: no log.
	Log *slog.Logger
	// Clock is the clock. Default: the real clock.
	Clock clock.Clock
	// OnChange, if set, is called when this process becomes the leader, and when it stops being the leader.
	OnChange func(isHeld bool)
	// OnConflict, if set, is called when a conflict begins and when it ends.
	OnConflict func(exists bool)
	// OnError, if set, is called when a request has failed.
	OnError func()
}

// Lease decides whether this process is the leader, which is the only replica that works.
type Lease struct {
	Options

	holder string

	mu        sync.Mutex
	expiry    time.Time
	isLeading bool
	// changed is closed when isLeading changes.
	changed chan struct{}
	// lastResponse is when the API last said who has the lease, lastError why it has not said so since then.
	lastResponse time.Time
	lastError    error
	// otherHolder is the holder of the lease if it has another fingerprint, and empty otherwise.
	otherHolder string
}

// New returns a lease that this process does not have yet. It makes no call.
func New(options Options) *Lease {
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})

	if options.OnChange == nil {
		options.OnChange = func(bool) {}
	}

	if options.OnConflict == nil {
		options.OnConflict = func(bool) {}
	}

	if options.OnError == nil {
		options.OnError = func() {}
	}

	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}

	holder := host + "-" + uuid.NewString()
	if options.Fingerprint != "" {
		holder += fingerprintSeparator + options.Fingerprint
	}

	return &Lease{Options: options, holder: holder, changed: make(chan struct{})}
}

// Run renews the lease, or waits for it, until ctx ends. Then it releases the lease, so that another replica can take
// over before the lease ends.
func (l *Lease) Run(ctx context.Context) {
	defer l.release()

	for retry.Sleep(ctx, l.Clock, l.renew(ctx)) == nil {
	}
}

// Lead waits until this process is the leader. The context that it returns ends when the process stops being the leader,
// and with ctx.
func (l *Lease) Lead(ctx context.Context) (context.Context, context.CancelFunc) {
	for {
		l.mu.Lock()
		isLeading, changed := l.isLeading, l.changed
		l.mu.Unlock()

		if isLeading {
			leading, cancel := context.WithCancel(ctx)

			go func() {
				defer cancel()

				select {
				case <-changed:
				case <-leading.Done():
				}
			}()

			return leading, cancel
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return ctx, func() {}
		}
	}
}

// IsHeld returns true as long as no other replica can have the lease. The time counts by this process's clock from
// before the request that renewed the lease.
func (l *Lease) IsHeld() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.remaining() > 0
}

// remaining returns the time until this process stops being the leader if it does not renew the lease.
func (l *Lease) remaining() time.Duration { return l.expiry.Add(-margin).Sub(l.Clock.Now()) }

// Conflict describes the process that has the lease with another fingerprint. It returns an empty string if there is
// none.
func (l *Lease) Conflict() string {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.otherHolder == "" {
		return ""
	}

	return fmt.Sprintf("stands by: process %q has the lease %s with another configuration; if it is not an earlier version that "+
		"is being replaced, give the two different names", l.otherHolder, l.Name)
}

// Check returns an error if it is unknown who has the lease, with the reason. For each request for the lease,
// the fleet API writes to its database, so Check also fails if the API cannot write.
func (l *Lease) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch {
	case l.Clock.Since(l.lastResponse) < TTL:
		return nil
	case l.lastError != nil:
		return fmt.Errorf("%w: lease %s: %w", errUnknown, l.Name, l.lastError)
	default:
		return fmt.Errorf("%w: lease %s", errUnknown, l.Name)
	}
}

// renew requests the lease and returns the delay until the next request. If this process has the lease, neither
// the request nor the delay lasts longer than the lease, so that no other process can get it in the meantime.
func (l *Lease) renew(parent context.Context) time.Duration {
	limit := func(wait time.Duration) time.Duration {
		l.mu.Lock()
		defer l.mu.Unlock()

		if remaining := l.remaining(); remaining > 0 {
			return min(wait, remaining)
		}

		return wait
	}

	ctx, cancel := context.WithTimeout(parent, limit(renewInterval))
	defer cancel()

	start := l.Clock.Now()

	current, err := l.API.PutLease(ctx, l.Name, l.holder, TTL)
	if parent.Err() != nil {
		return 0
	}

	l.record(err)

	switch {
	case err != nil:
		l.OnError()
		l.Log.Warn("could not renew the lease", "lease", l.Name, "error", err)
		l.setExpiry(l.expiry)

		return limit(margin)
	case current.Holder == l.holder:
		l.setHolder(current.Holder)
		l.setExpiry(start.Add(TTL))

		return renewInterval
	default:
		l.setHolder(current.Holder)
		l.setExpiry(time.Time{})

		remaining := time.Duration(current.ExpiresInSeconds * float64(time.Second))

		return min(renewInterval, max(remaining, 0)+slack)
	}
}

// record records the result of a request for the lease.
func (l *Lease) record(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.lastError = err; err == nil {
		l.lastResponse = l.Clock.Now()
	}
}

// setHolder stores the holder if it has another fingerprint. It logs a new one once.
func (l *Lease) setHolder(holder string) {
	_, fingerprint, isKnown := strings.Cut(holder, fingerprintSeparator)

	otherHolder := ""
	if l.Fingerprint != "" && isKnown && fingerprint != l.Fingerprint {
		otherHolder = holder
	}

	l.mu.Lock()
	isNew := otherHolder != l.otherHolder
	l.otherHolder = otherHolder
	l.mu.Unlock()

	if !isNew {
		return
	}

	l.OnConflict(otherHolder != "")

	if otherHolder != "" {
		l.Log.Warn("another process has the lease", "lease", l.Name, "holder", otherHolder, "message", l.Conflict())
	}
}

// setExpiry stores when the lease ends. If this process becomes the leader or stops being the leader, setExpiry logs this and
// wakes everyone who waits for such a change.
func (l *Lease) setExpiry(expiry time.Time) {
	l.mu.Lock()
	l.expiry = expiry
	isHeld := l.remaining() > 0
	hasChanged := isHeld != l.isLeading
	l.isLeading = isHeld

	if hasChanged {
		close(l.changed)
		l.changed = make(chan struct{})
	}

	l.mu.Unlock()

	if !hasChanged {
		return
	}

	if isHeld {
		l.Log.Info("this replica is the leader", "lease", l.Name)
	} else {
		l.Log.Info("this replica is not the leader any more", "lease", l.Name)
	}

	l.OnChange(isHeld)
}

func (l *Lease) release() {
	l.mu.Lock()
	isHeld := l.isLeading
	l.mu.Unlock()

	if !isHeld {
		return
	}

	l.setExpiry(time.Time{})

	ctx, cancel := context.WithTimeout(context.Background(), renewInterval)
	defer cancel()

	if _, err := l.API.PutLease(ctx, l.Name, l.holder, 0); err != nil {
		l.Log.Warn("could not release the lease: another replica takes over when it ends", "lease", l.Name, "error", err)
	}
}
