// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

var errLockTimeout = errors.New("got timeout")

// lockTable holds named locks. A lock is exclusive or has up to limit holders.
type lockTable struct {
	clk   clock.Clock
	mu    sync.Mutex
	locks map[string]*lockState
}

type lockState struct {
	holders   int
	exclusive bool
	changed   chan struct{}
}

func newLockTable(clk clock.Clock) *lockTable {
	return &lockTable{clk: clk, locks: map[string]*lockState{}}
}

// acquire waits for a lock until the timeout and returns a function that releases the lock. A limit
// of 0 requests an exclusive lock.
func (t *lockTable) acquire(ctx context.Context, name string, limit int, timeout time.Duration) (func(), error) {
	var timer clock.Timer
	for {
		changed, ok := t.tryAcquire(name, limit)
		if ok {
			if timer != nil {
				timer.Stop()
			}
			return sync.OnceFunc(func() { t.release(name) }), nil
		}
		if timer == nil {
			timer = t.clk.NewTimer(timeout)
		}
		select {
		case <-changed:
		case <-timer.C():
			return nil, errLockTimeout
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
	}
}

func (t *lockTable) tryAcquire(name string, limit int) (released <-chan struct{}, isAcquired bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.locks[name]
	if l == nil {
		l = &lockState{changed: make(chan struct{})}
		t.locks[name] = l
	}
	free := l.holders == 0 || (limit > 0 && !l.exclusive && l.holders < limit)
	if !free {
		return l.changed, false
	}
	l.holders++
	l.exclusive = limit == 0
	return nil, true
}

func (t *lockTable) release(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.locks[name]
	l.holders--
	if l.holders == 0 {
		delete(t.locks, name)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}
