// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"context"
	"fmt"

	"github.com/hyperfleet/hyperfleet/kit/objectstore"
)

// trialKey follows the prefix. It is always the same, so that one object at most stays where
// keys may not delete.
const trialKey = "hyperfleet-doctor.txt"

// trialText is what Try writes.
const trialText = "Written by hyperfleet doctor, to see whether the store takes logs. It may be deleted.\n"

// Trial is what a store takes, beside a new object.
type Trial struct {
	// At is the address of what was written.
	At string
	// Unread and Undeleted say why it could not be read, and was not deleted. The operator does
	// neither.
	Unread, Undeleted error
}

// Try writes a small text as logs are written, reads it, and deletes it. An error is why nothing
// can be written.
func (s *Store) Try(ctx context.Context) (Trial, error) {
	key := s.Config.Prefix + trialKey
	out := Trial{At: objectstore.URL(s.Config.Bucket, key)}

	store, err := s.open(ctx)
	if err != nil {
		return out, err
	}

	if err := store.Put(ctx, key, trialText); err != nil {
		return out, err
	}

	got, err := store.Get(ctx, key, int64(len(trialText)))
	out.Unread, out.Undeleted = err, store.Delete(ctx, key)

	if err == nil && got != trialText {
		return out, fmt.Errorf("read %s at %s: it is not what was written", out.At, s.Config.Endpoint)
	}

	return out, nil
}
