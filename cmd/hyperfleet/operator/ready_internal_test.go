// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"net/http/httptest"
	"testing"
)

type caches bool

func (c *caches) WaitForCacheSync(context.Context) bool { return bool(*c) }

// A pod that serves webhooks is not taken out of its Service because it has become the leader.
func TestReadyOnceIsReady(t *testing.T) {
	t.Parallel()

	var filled caches

	check := synced(&filled)
	asked := func() error { return check(httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil)) }

	if err := asked(); !errors.Is(err, errNotSynced) {
		t.Fatalf("before its caches are filled: %v", err)
	}

	filled = true

	if err := asked(); err != nil {
		t.Fatalf("when they are: %v", err)
	}

	filled = false

	if err := asked(); err != nil {
		t.Errorf("when controllers bring others: %v", err)
	}
}
