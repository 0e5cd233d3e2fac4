// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import "sync"

// locks are mutexes by name, as many as are held.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	mu    sync.Mutex
	users int
}

func newLocks() *locks { return &locks{held: map[string]*lock{}} }

// lock waits for the name's mutex and gives what releases it.
func (l *locks) lock(name string) func() {
	l.mu.Lock()

	one, ok := l.held[name]
	if !ok {
		one = &lock{}
		l.held[name] = one
	}

	one.users++
	l.mu.Unlock()
	one.mu.Lock()

	return func() {
		one.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()

		one.users--
		if one.users == 0 {
			delete(l.held, name)
		}
	}
}
