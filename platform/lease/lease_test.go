// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/lease"
)

// fakeAPI has one lease. If it hangs, requests end with their context.
type fakeAPI struct {
	mu     sync.Mutex
	holder string
	expiry time.Time
	hangs  bool
}

func (a *fakeAPI) PutLease(ctx context.Context, name, holder string, ttl time.Duration) (*openapi.Lease, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.hangs {
		a.mu.Unlock()
		<-ctx.Done()
		a.mu.Lock()

		return nil, ctx.Err()
	}

	if now := time.Now(); !now.Before(a.expiry) || a.holder == holder {
		a.holder, a.expiry = holder, now.Add(ttl)
	}

	return &openapi.Lease{Name: name, Holder: a.holder, ExpiresInSeconds: time.Until(a.expiry).Seconds()}, nil
}

func (a *fakeAPI) setHanging(hangs bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.hangs = hangs
}

// newLease starts a process that wants the lease, and returns a function that ends it.
func newLease(t *testing.T, options lease.Options) (l *lease.Lease, stop func()) {
	t.Helper()

	options.Name = "work"
	ctx, cancel := context.WithCancel(t.Context())
	l = lease.New(options)

	var running sync.WaitGroup

	running.Go(func() { l.Run(ctx) })

	return l, func() {
		cancel()
		running.Wait()
	}
}

// TestLeaderStopsBeforeItsLeaseEnds checks that a leader whose requests hang has stopped before another process can have
// the lease, and that its work ends then.
func TestLeaderStopsBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		errs := 0
		api := &fakeAPI{}
		l, stop := newLease(t, lease.Options{API: api, OnError: func() { errs++ }})

		leading, cancel := l.Lead(t.Context())
		defer cancel()

		if !l.IsHeld() || leading.Err() != nil || l.Check() != nil {
			t.Fatalf("the lease is not held: %v, %v", leading.Err(), l.Check())
		}

		time.Sleep(time.Minute)

		if leading.Err() != nil {
			t.Fatal("a lease that is renewed is lost")
		}

		api.setHanging(true)
		<-leading.Done()

		if left := time.Until(api.expiry); left < 900*time.Millisecond || left > 2*time.Second {
			t.Errorf("the work ends %s before the lease", left)
		}

		if l.IsHeld() || errs == 0 {
			t.Errorf("held: %t, %d errors", l.IsHeld(), errs)
		}

		time.Sleep(lease.TTL)

		if err := l.Check(); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "lease work") {
			t.Errorf("check: %v", err)
		}

		api.setHanging(false)
		_, cancel = l.Lead(t.Context())
		cancel()
		stop()
	})
}

// TestReplicasTakeTurns checks that the lease moves to another replica at once when the leader ends, after the lease's
// time when the leader hangs, and that processes with different fingerprints know of each other.
func TestReplicasTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}

		var conflicts, changes []bool

		first, stopFirst := newLease(t, lease.Options{API: api, Fingerprint: "a"})
		_, cancel := first.Lead(t.Context())
		cancel()

		second, stopSecond := newLease(t, lease.Options{
			API: api, Fingerprint: "b", OnConflict: func(exists bool) { conflicts = append(conflicts, exists) },
			OnChange: func(isHeld bool) { changes = append(changes, isHeld) },
		})

		time.Sleep(time.Minute)

		if second.IsHeld() || first.Conflict() != "" || !strings.Contains(second.Conflict(), api.holder) {
			t.Errorf("held: %t, conflicts: %q, %q", second.IsHeld(), first.Conflict(), second.Conflict())
		}

		stopFirst()

		start := time.Now()
		_, cancel = second.Lead(t.Context())
		cancel()

		if late := time.Since(start); late > 3*time.Second || second.Conflict() != "" {
			t.Errorf("the lease moved after %s; conflict: %q", late, second.Conflict())
		}

		stopSecond()

		if api.expiry.After(time.Now()) || len(changes) != 2 || len(conflicts) != 2 || !conflicts[0] || conflicts[1] {
			t.Errorf("expiry in %s, changes %v, conflicts %v", time.Until(api.expiry), changes, conflicts)
		}

		ended, end := context.WithCancel(t.Context())
		end()

		if ctx, _ := second.Lead(ended); ctx.Err() == nil {
			t.Error("a process that is not the leader leads")
		}
	})
}
