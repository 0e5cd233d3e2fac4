// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// troubleKept is for how long a trouble counts that nothing says the end of. What meets
// it is tried again more often.
const troubleKept = time.Minute

// troubles are what keeps a broker from its work while the connection stands: a
// subscription that can't be made, a permission that is missing.
type troubles struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	of    map[string]trouble
}

type trouble struct {
	err error
	// until when it counts; zero: until it is told to be over.
	until time.Time
}

func newTroubles(clk clock.PassiveClock) *troubles {
	return &troubles{clock: clk, of: map[string]trouble{}}
}

// note keeps a trouble of publishing for a while. It is fresh if it was not known.
func (t *troubles) note(err error) (fresh bool) {
	t.mu.Lock()
	defer t.mu.Unlock()

	now := t.clock.Now()
	last, known := t.of[troublePublish]
	t.of[troublePublish] = trouble{err: err, until: now.Add(troubleKept)}

	return !known || now.After(last.until) || last.err.Error() != err.Error()
}

// keep keeps a trouble until it is over.
func (t *troubles) keep(of string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.of[of] = trouble{err: err}
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
		one := t.of[of]
		if !one.until.IsZero() && t.clock.Now().After(one.until) {
			delete(t.of, of)

			continue
		}

		all = append(all, one.err)
	}

	return errors.Join(all...)
}
