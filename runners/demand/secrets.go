// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// SecretReader reads the value that a selector picks for an object in a namespace.
// Errors of class Configuration say what a person must change; others are transient.
type SecretReader interface {
	Value(ctx context.Context, selector v1alpha1.SecretKeySelector, namespace string) (string, error)
}

const (
	// secretAge is how old a secret may be that verifies a webhook.
	secretAge = 15 * time.Second
	// rereadAge is how old a secret must be to be read anew for a webhook that it does not
	// verify: it may have been rotated. It bounds the reads that strangers can cause.
	rereadAge = 2 * time.Second
)

// secretKey is one reading of one selector. What an object may read depends on its own
// namespace.
type secretKey struct {
	selector  string
	namespace string
}

type secretEntry struct {
	value string
	err   error
	read  time.Time
}

// secretCache keeps webhooks' secrets a short while.
type secretCache struct {
	reader SecretReader
	clock  clock.PassiveClock
	flight singleflight.Group

	mu      sync.Mutex
	entries map[secretKey]secretEntry
}

// get gives a secret that was read at most maxAge ago.
func (c *secretCache) get(
	ctx context.Context, selector v1alpha1.SecretKeySelector, namespace string, maxAge time.Duration,
) (string, error) {
	key := secretKey{selector: selector.Namespace + "/" + selector.Name + "/" + selector.Key, namespace: namespace}

	c.mu.Lock()
	entry, ok := c.entries[key]
	c.mu.Unlock()

	if ok && c.clock.Since(entry.read) <= maxAge {
		return entry.value, entry.err
	}

	done := c.flight.DoChan(key.namespace+"\x00"+key.selector, func() (any, error) {
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), receiveTimeout)
		defer cancel()

		now := c.clock.Now()
		value, err := c.reader.Value(shared, selector, namespace)

		return c.put(key, secretEntry{value: value, err: err, read: now}), nil
	})

	select {
	case result := <-done:
		entry, _ := result.Val.(secretEntry)

		return entry.value, entry.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// put keeps an entry and drops those that nobody asks for any more.
func (c *secretCache) put(key secretKey, entry secretEntry) secretEntry {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.entries == nil {
		c.entries = map[secretKey]secretEntry{}
	}

	for old, was := range c.entries {
		if c.clock.Since(was.read) > 10*secretAge {
			delete(c.entries, old)
		}
	}

	c.entries[key] = entry

	return entry
}
