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
	err   error
	until time.Time
}

// note keeps a trouble, or that it is over: nil.
func (t *troubles) note(of string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.of == nil {
		t.of = map[string]trouble{}
	}

	t.of[of] = trouble{err: err, until: time.Now().Add(troubleKept)}
}

// err gives all that count; nil if there are none.
func (t *troubles) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()

	maps.DeleteFunc(t.of, func(_ string, one trouble) bool { return one.err == nil || !time.Now().Before(one.until) })

	var all []error

	for _, of := range slices.Sorted(maps.Keys(t.of)) {
		all = append(all, t.of[of].err)
	}

	return errors.Join(all...)
}
