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

// SecretReader reads the value that a selector picks for an object in a namespace. An error of
// class Configuration needs a change by a person; other errors are transient.
type SecretReader interface {
	ReadValue(ctx context.Context, selector v1alpha1.SecretKeySelector, namespace string) (string, error)
}

const (
	// maxSecretAge is how old a cached Secret may be that verifies a webhook.
	maxSecretAge = 15 * time.Second
	// minRereadAge is how old a cached Secret must be to be read again for a webhook that it does
	// not verify, because it may have been rotated. It limits the reads that untrusted callers can
	// cause.
	minRereadAge = 2 * time.Second
)

// secretKey identifies a cached value: the selector and the namespace of the object that reads it.
// Which Secrets an object may read depends on its namespace.
type secretKey struct {
	selector  string
	namespace string
}

func newSecretKey(selector v1alpha1.SecretKeySelector, namespace string) secretKey {
	return secretKey{selector: selector.Namespace + "/" + selector.Name + "/" + selector.Key, namespace: namespace}
}

type secretEntry struct {
	value  string
	err    error
	readAt time.Time
}

// secretCache caches the Secrets of webhooks for a short time.
type secretCache struct {
	reader SecretReader
	clock  clock.PassiveClock
	flight singleflight.Group

	mu      sync.Mutex
	entries map[secretKey]secretEntry
}

// get returns a value that was read at most maxAge ago. Concurrent reads of one value share one
// call.
func (c *secretCache) get(
	ctx context.Context, selector v1alpha1.SecretKeySelector, namespace string, maxAge time.Duration,
) (string, error) {
	key := newSecretKey(selector, namespace)

	c.mu.Lock()
	entry, ok := c.entries[key]
	c.mu.Unlock()

	if ok && c.clock.Since(entry.readAt) <= maxAge {
		return entry.value, entry.err
	}

	done := c.flight.DoChan(key.namespace+"\x00"+key.selector, func() (any, error) {
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), receiveTimeout)
		defer cancel()

		now := c.clock.Now()
		value, err := c.reader.ReadValue(shared, selector, namespace)

		return c.put(key, secretEntry{value: value, err: err, readAt: now}), nil
	})

	select {
	case result := <-done:
		entry, _ := result.Val.(secretEntry)

		return entry.value, entry.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// put stores an entry and deletes the entries older than 10 times maxSecretAge.
func (c *secretCache) put(key secretKey, entry secretEntry) secretEntry {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.entries == nil {
		c.entries = map[secretKey]secretEntry{}
	}

	for old, cached := range c.entries {
		if c.clock.Since(cached.readAt) > 10*maxSecretAge {
			delete(c.entries, old)
		}
	}

	c.entries[key] = entry

	return entry
}
