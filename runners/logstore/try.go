// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"context"
	"fmt"

	"github.com/hyperfleet/hyperfleet/runners/objectstore"
)

// checkKey is the object key after the prefix. It is constant, so that at most one object is left over if
// the credentials may not delete objects.
const checkKey = "hyperfleet-doctor.txt"

// checkText is the text that Check writes.
const checkText = "hyperfleet doctor has written this file to check that the store accepts logs. You can delete it.\n"

// CheckResult is the result of Check. The operator needs neither to read nor to delete objects, so
// ReadError and DeleteError are not failures.
type CheckResult struct {
	// URL is the address of the object that Check has written.
	URL string
	// ReadError and DeleteError are nil if Check could read and delete the object.
	ReadError, DeleteError error
}

// Check writes a small object in the same way as logs are written, reads it, and deletes it. It returns an
// error if it cannot write the object, or reads another text than it has written.
func (s *Store) Check(ctx context.Context) (CheckResult, error) {
	key := s.Config.Prefix + checkKey
	out := CheckResult{URL: objectstore.ObjectURL(s.Config.Bucket, key)}

	store, err := s.open(ctx)
	if err != nil {
		return out, err
	}

	if err := store.Put(ctx, key, checkText); err != nil {
		return out, err
	}

	text, err := store.Get(ctx, key, int64(len(checkText)))
	out.ReadError, out.DeleteError = err, store.Delete(ctx, key)

	if err == nil && text != checkText {
		return out, fmt.Errorf("read %s at %s: the text is not the text that was written", out.URL, s.Config.Endpoint)
	}

	return out, nil
}
