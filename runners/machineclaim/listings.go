// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"maps"
	"sync"
	"time"
)

// listingPause is how long after one listing of a CI platform's runners the next is made for
// machines that have stopped: those that stop meanwhile share it.
const listingPause = 2 * time.Second

// listings are when a CI platform's runners were last listed for a machine that had stopped.
// The zero value is ready to use.
type listings struct {
	mu    sync.Mutex
	begun map[string]time.Time
}

// wait gives how long a claim whose machine stopped at that time waits for a listing: not at
// all where one was begun since, or where the last was long enough ago, for then its own
// begins now.
func (l *listings) wait(platform string, stopped, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	last := l.begun[platform]
	if last.After(stopped) {
		return 0
	}

	if left := last.Add(listingPause).Sub(now); left > 0 {
		return left
	}

	maps.DeleteFunc(l.begun, func(_ string, begun time.Time) bool { return now.Sub(begun) > listingPause })

	if l.begun == nil {
		l.begun = map[string]time.Time{}
	}

	l.begun[platform] = now

	return 0
}
