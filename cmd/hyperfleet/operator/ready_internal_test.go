// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
)

// TestReadyOnceIsReady checks that a pod stays ready when it becomes the leader, so that its Service keeps sending
// webhooks to it.
func TestReadyOnceIsReady(t *testing.T) {
	t.Parallel()

	filled := false
	check := newCacheCheck(func(context.Context) bool { return filled })
	checkReady := func() error { return check(httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil)) }

	if err := checkReady(); !errors.Is(err, errNotSynced) {
		t.Fatalf("before its caches are filled: %v", err)
	}

	filled = true

	if err := checkReady(); err != nil {
		t.Fatalf("when they are: %v", err)
	}

	filled = false

	if err := checkReady(); err != nil {
		t.Errorf("when controllers bring others: %v", err)
	}
}
