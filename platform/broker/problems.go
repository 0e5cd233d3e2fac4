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

// set records the result of an operation under its name: a problem that counts for problemTTL, or nil if the problem is over.
func (p *problemSet) set(name string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if err == nil {
		delete(p.byName, name)

		return
	}

	if p.byName == nil {
		p.byName = map[string]problem{}
	}

	p.byName[name] = problem{err: err, expiry: time.Now().Add(problemTTL)}
}

// err returns all current problems. It returns nil if there are none.
func (p *problemSet) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	maps.DeleteFunc(p.byName, func(_ string, item problem) bool { return !time.Now().Before(item.expiry) })

	var all []error

	for _, name := range slices.Sorted(maps.Keys(p.byName)) {
		all = append(all, p.byName[name].err)
	}

	return errors.Join(all...)
}
