// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import "sync"

// keyedMutex is a set of mutexes by key. It holds only the mutexes that are in use.
type keyedMutex struct {
	mu      sync.Mutex
	entries map[string]*lockEntry
}

type lockEntry struct {
	mu    sync.Mutex
	users int
}

func newKeyedMutex() *keyedMutex { return &keyedMutex{entries: map[string]*lockEntry{}} }

// lock waits for the mutex of the key, locks it, and returns the function that unlocks it.
func (l *keyedMutex) lock(key string) func() {
	l.mu.Lock()

	entry, ok := l.entries[key]
	if !ok {
		entry = &lockEntry{}
		l.entries[key] = entry
	}

	entry.users++
	l.mu.Unlock()
	entry.mu.Lock()

	return func() {
		entry.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()

		entry.users--
		if entry.users == 0 {
			delete(l.entries, key)
		}
	}
}
