// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// TestQuotaIsNoFailure checks that a step whose object a ResourceQuota rejects waits, and is retried after a time that
// does not grow.
func TestQuotaIsNoFailure(t *testing.T) {
	t.Parallel()

	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("exceeded quota: few"))

	err := fmt.Errorf("create secret: %w", quota)

	for name, tc := range map[string]struct {
		result Result
		want   time.Duration
	}{
		"Fail": {Fail(err), quotaRetry}, "FromError without a time": {FromError(err, 0), quotaRetry},
		"FromError with a longer time": {FromError(err, time.Hour), quotaRetry}, "FromError": {FromError(err, time.Second), time.Second},
	} {
		result := tc.result
		if result.IsFailed() || result.IsStalled() || result.RequeueAfter() != tc.want || result.Reason() != "QuotaExceeded" {
			t.Errorf("%s: result %v, requeue after %v, want %v", name, result, result.RequeueAfter(), tc.want)
		}
	}

	for wait, want := range map[time.Duration]time.Duration{0: quotaRetry, time.Second: time.Second, time.Hour: quotaRetry} {
		result := FromError(errclass.Wrap(errclass.Resource, "CreationFailed", quota), wait)
		if result.IsFailed() || result.IsStalled() || result.RequeueAfter() != want {
			t.Errorf("result %v, requeue after %v, want %v", result, result.RequeueAfter(), want)
		}
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
