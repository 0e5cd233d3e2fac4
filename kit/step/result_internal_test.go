// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestQuotaIsNoFailure checks that a step whose object a ResourceQuota rejects waits, and is retried after a time that
// does not grow.
func TestQuotaIsNoFailure(t *testing.T) {
	t.Parallel()

	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("exceeded quota: few"))

	result := Fail(fmt.Errorf("create secret: %w", quota))
	if result.IsFailed() || result.IsStalled() || result.RequeueAfter() != quotaRetry || result.Reason() != "QuotaExceeded" {
		t.Errorf("result %v, requeue after %v", result, result.RequeueAfter())
	}
}

// TestMessagesControlNoTerminal checks that a message contains no characters that control a terminal or the direction
// of the text, because a message can quote another system.
func TestMessagesControlNoTerminal(t *testing.T) {
	t.Parallel()

	if got := sanitizeMessage("clone:\x1b[2J\r\u009b1A\u202eredirect\x00\n\tبناء\xff"); got != "clone:[2J1Aredirect\n\tبناء?" {
		t.Errorf("message %q", got)
	}
}
