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

// troubleKept is for how long a trouble counts that nothing says the end of. What meets
// it is tried again more often.
const troubleKept = time.Minute

// troubles are what keeps a broker from its work while the connection stands: a
// subscription that can't be made, a permission that is missing.
type troubles struct {
	mu sync.Mutex
	of map[string]trouble
}

type trouble struct {
	err error
	// until when it counts; zero: until it is told to be over.
	until time.Time
}

// note keeps a trouble: for a while, or until it is over.
func (t *troubles) note(of string, err error, passing bool) {
	t.mu.Lock()
	defer t.mu.Unlock()

	one := trouble{err: err}
	if passing {
		one.until = time.Now().Add(troubleKept)
	}

	if t.of == nil {
		t.of = map[string]trouble{}
	}

	t.of[of] = one
}

func (t *troubles) over(of string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	delete(t.of, of)
}

// anew forgets what was noted for a while: a new connection shows whether it is still so.
func (t *troubles) anew() {
	t.mu.Lock()
	defer t.mu.Unlock()

	maps.DeleteFunc(t.of, func(_ string, one trouble) bool { return !one.until.IsZero() })
}

// err gives all that count; nil if there are none.
func (t *troubles) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()

	var all []error

	for _, of := range slices.Sorted(maps.Keys(t.of)) {
		if one := t.of[of]; one.until.IsZero() || time.Now().Before(one.until) {
			all = append(all, one.err)
		}
	}

	return errors.Join(all...)
}
