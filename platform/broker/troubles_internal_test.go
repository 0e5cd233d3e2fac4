// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// TestTroubles: what is noted counts for a minute, what is kept until it is over.
func TestTroubles(t *testing.T) {
	t.Parallel()

	now := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	known := newTroubles(now)
	denied, lost, gone := errors.New("denied"), errors.New("lost"), errors.New("gone")

	if !known.note(denied) || known.note(denied) || !known.note(lost) {
		t.Error("what is new is not told from what is known")
	}

	known.keep("consume", gone)

	if err := known.err(); err == nil || err.Error() != "gone\nlost" {
		t.Errorf("err() = %v", err)
	}

	now.SetTime(now.Now().Add(troubleKept + time.Second))

	if err := known.err(); err == nil || err.Error() != "gone" {
		t.Errorf("a minute later err() = %v", err)
	}

	if !known.note(lost) {
		t.Error("what was over is not new")
	}

	known.anew()

	if err := known.err(); err == nil || err.Error() != "gone" {
		t.Errorf("with a new connection err() = %v", err)
	}

	known.over("consume")

	if err := known.err(); err != nil {
		t.Errorf("when all is over err() = %v", err)
	}
}
