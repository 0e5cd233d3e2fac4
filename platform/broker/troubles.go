// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// problemTTL is how long a problem counts if nothing reports that it is over. Operations that fail
// are retried more often than that.
const problemTTL = time.Minute

// problemSet has the problems that prevent a broker from working although it is connected, such as
// a missing permission or a subscription that cannot be created.
type problemSet struct {
	mu     sync.Mutex
	byName map[string]problem
}

type problem struct {
	err    error
	expiry time.Time
}

// set records the problem with a name. A nil error means that the problem is over.
func (t *problemSet) set(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.byName == nil {
		t.byName = map[string]problem{}
	}

	t.byName[name] = problem{err: err, expiry: time.Now().Add(problemTTL)}
}

// err returns all current problems. It returns nil if there are none.
func (t *problemSet) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()

	maps.DeleteFunc(t.byName, func(_ string, item problem) bool { return item.err == nil || !time.Now().Before(item.expiry) })

	var all []error

	for _, name := range slices.Sorted(maps.Keys(t.byName)) {
		all = append(all, t.byName[name].err)
	}

	return errors.Join(all...)
}
