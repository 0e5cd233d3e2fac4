// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"maps"
	"sync"
	"time"
)

// minListInterval is the minimum time between two lists of a CI platform's runners for stopped machines.
// Machines that stop in the meantime share the next list.
const minListInterval = 2 * time.Second

// runnerLists holds when the runners of each CI platform were last listed for a stopped machine. The zero
// value is ready to use.
type runnerLists struct {
	mu        sync.Mutex
	startedAt map[string]time.Time
}

// reserve returns how long a claim must wait before it lists the runners of the platform. It returns 0 if a
// list was started after the machine stopped, which the claim can use. It also returns 0 if the last list
// was started long enough ago, and then records that a list starts now.
func (l *runnerLists) reserve(platform string, stopped, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	last := l.startedAt[platform]
	if last.After(stopped) {
		return 0
	}

	if remaining := last.Add(minListInterval).Sub(now); remaining > 0 {
		return remaining
	}

	maps.DeleteFunc(l.startedAt, func(_ string, begun time.Time) bool { return now.Sub(begun) > minListInterval })

	if l.startedAt == nil {
		l.startedAt = map[string]time.Time{}
	}

	l.startedAt[platform] = now

	return 0
}
